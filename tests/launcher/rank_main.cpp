// The program that the launcher's tests start as rank. The first argument says what it does.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include "cluster/report.h"
#include "muster/base/error.h"
#include "muster/launcher/launch.h"
#include "options/program_options.h"
#include "options/trainer_fields.h"

namespace {

using Words = char**;

muster::ClusterEnvironment cluster;

void say_pid() {
  std::printf("rank %d pid %d\n", cluster.rank, static_cast<int>(getpid()));
  std::fflush(stdout);
}

[[noreturn]] void wait_for_ever() {
  say_pid();
  for (;;) pause();
}

/// Blocks until a byte or the end comes from stdin of rank 0, the test's way to say "now".
void await_word() {
  char byte;
  while (read(0, &byte, 1) < 0) {}
}

void got_signal(int number) {
  char text[32];
  int size = std::snprintf(text, sizeof text, "got %d\n", number);
  [[maybe_unused]] auto written = write(1, text, static_cast<size_t>(size));
  if (number != SIGUSR1) _exit(0);
}

int environment(Words) {
  for (auto name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT", "OMP_NUM_THREADS", "MUSTER_OPTIONS", "TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES"})
    std::printf("%s=%s\n", name, std::getenv(name) ? std::getenv(name) : "-");
  return 0;
}

/// Prints every option as a program without options of its own resolves it.
int options(Words) {
  const auto variables = muster::Environment::of_process();
  auto texts = muster::runtime::written_options(muster::runtime::resolved({}, variables));
  texts.merge(muster::trainer::written_options(muster::trainer::with_given_options({}, variables)));
  for (const auto& [name, text] : texts) std::printf("%s=%s\n", name.c_str(), text.c_str());
  return 0;
}

/// words WORDS...: prints its arguments.
int print_words(Words words) {
  for (; *words; ++words) std::printf("<%s>", *words);
  std::printf("\n");
  return 0;
}

int secret(Words) {
  std::printf("%s\n", std::getenv("MUSTER_SECRET") ? std::getenv("MUSTER_SECRET") : "-");
  return 0;
}

/// lines COUNT: lines in pieces, to both streams in turn.
int lines(Words words) {
  for (int i = 0; i < std::atoi(words[0]); ++i) {
    std::string line =
        "rank " + std::to_string(cluster.rank) + " line " + std::to_string(i) + std::string(i % 90, '.') + "\n";
    size_t half = line.size() / 2;
    [[maybe_unused]] auto a = write(1, line.data(), half);
    [[maybe_unused]] auto b = write(1, line.data() + half, line.size() - half);
  }
  return 0;
}

/// write RANK TEXT: rank RANK writes TEXT as it is.
int write_text(Words words) {
  if (cluster.rank == std::atoi(words[0])) [[maybe_unused]]
    auto written = write(1, words[1], std::strlen(words[1]));
  return 0;
}

/// fail RANK exit|signal NUMBER: that rank fails, the others ignore requests to end.
int fail(Words words) {
  int number = std::atoi(words[2]);
  signal(SIGTERM, SIG_IGN);
  if (cluster.rank != std::atoi(words[0])) wait_for_ever();
  say_pid();
  std::printf("about to fail\n");
  std::fflush(stdout);
  if (!std::strcmp(words[1], "exit")) return number;
  signal(number, SIG_DFL);
  raise(number);
  return 0;
}

/// family: each rank has a process of its own that waits, too.
int family(Words) {
  signal(SIGTERM, SIG_IGN);
  if (fork() == 0) {
    cluster.rank += 100;
    wait_for_ever();
  }
  wait_for_ever();
}

int handle(Words) {
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) signal(number, got_signal);
  wait_for_ever();
}

int ignore(Words) {
  for (int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_IGN);
  wait_for_ever();
}

int terminal(Words) {
  std::printf("terminal %d\n", isatty(1));
  return 0;
}

int input(Words) {
  char text[64] = {};
  ssize_t size = read(0, text, sizeof text - 1);
  std::printf("read %zd %s\n", size, text);
  return 0;
}

int show(Words) {
  std::printf("launcher %s rank %d of %d local %d of %d port %d fd %d\n",
              std::string(to_string(cluster.launcher)).c_str(), cluster.rank, cluster.world_size, cluster.local_rank,
              cluster.local_world_size, cluster.main_port, cluster.store_listen_fd);
  std::fflush(stdout);
  return 0;
}

int show_and_wait(Words words) {
  show(words);
  wait_for_ever();
}

/// exits CODE0 CODE1: each of two ranks exits with its code, at once.
int exits(Words words) { return std::atoi(words[cluster.rank]); }

/// echo CODE: rank 1 exits with CODE; rank 0 hears of it and throws.
int echo(Words words) {
  if (cluster.rank != 0) return std::atoi(words[0]);
  siginfo_t info;
  waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);
  throw std::runtime_error("the other rank is gone");
}

/// throws KIND: an error of Muster on all ranks ("same"), one of each rank's own ("each"), a longer one than fits
/// ("long"), or another exception ("other").
int throws(Words words) {
  if (!std::strcmp(words[0], "other")) throw std::runtime_error("no error of Muster");
  const std::string text = !std::strcmp(words[0], "long")   ? std::string(5000, 'x')
                           : !std::strcmp(words[0], "each") ? "of rank " + std::to_string(cluster.rank)
                                                            : "unknown thing\nthere is another";
  std::printf("held back");
  throw muster::ConfigError("MU002", text);
}

/// Rank 1 tells rank 0 its job, as ranks of one round can: whether it is the job of rank 0.
bool meets() {
  sockaddr_in address{AF_INET, htons(static_cast<uint16_t>(cluster.main_port)), {htonl(INADDR_LOOPBACK)}, {}};
  char other[256] = "";
  const int end =
      cluster.rank == 0 ? accept(cluster.store_listen_fd, nullptr, nullptr) : socket(AF_INET, SOCK_STREAM, 0);
  if (cluster.rank == 0) {
    [[maybe_unused]] auto size = recv(end, other, cluster.job.size(), MSG_WAITALL);
    close(cluster.store_listen_fd);
  } else if (connect(end, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    cluster.job.copy(other, sizeof other - 1);
    [[maybe_unused]] auto size = send(end, other, cluster.job.size(), 0);
  }
  close(end);
  return cluster.job == other;
}

/// round LAST: the ranks meet, make a step, and leave a process behind. In round 0 and LAST they wait; in the others
/// one of two fails.
int round_of_restarts(Words words) {
  const int round = cluster.restart_count;
  if (!meets()) return 9;
  muster::cluster::Report::open(cluster.report_fd).step(1);
  if (fork() == 0)
    for (;;) pause();
  std::printf("round %d ", round);
  if (round == 0 || round == std::atoi(words[0]) || cluster.rank != round % 2) wait_for_ever();
  say_pid();
  if (round % 3 == 0) raise(SIGKILL);
  if (round % 3 == 1) throw muster::ConfigError("MU002", "unknown thing");
  return 3;
}

/// give_up: rank 0 gives rank 1 up at SIGUSR1, as one that catches its error does, and ends well.
int give_up(Words) {
  if (cluster.rank != 0) wait_for_ever();
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGUSR1);
  sigprocmask(SIG_BLOCK, &awaited, nullptr);
  say_pid();
  int number = 0;
  sigwait(&awaited, &number);
  muster::cluster::Report::open(cluster.report_fd).lost(1, "MU051: waited");
  return 0;
}

int leave(Words words) {
  if (cluster.rank != 0) wait_for_ever();
  await_word();
  std::exit(std::atoi(words[0]));
}

const std::map<std::string, int (*)(Words)> kDeeds = {{"environment", environment},
                                                      {"lines", lines},
                                                      {"write", write_text},
                                                      {"fail", fail},
                                                      {"family", family},
                                                      {"handle", handle},
                                                      {"ignore", ignore},
                                                      {"terminal", terminal},
                                                      {"input", input},
                                                      {"options", options},
                                                      {"show", show},
                                                      {"round", round_of_restarts},
                                                      {"secret", secret},
                                                      {"show_and_wait", show_and_wait},
                                                      {"exits", exits},
                                                      {"echo", echo},
                                                      {"give_up", give_up},
                                                      {"leave", leave},
                                                      {"throws", throws},
                                                      {"words", print_words}};

}  // namespace

/// [launch PROCESSES EXIT_MS] DEED WORDS...
int main(int, char** words) {
  ++words;
  try {
    if (!std::strcmp(words[0], "launch")) {
      muster::LaunchOptions options;
      options.processes = std::atoi(words[1]);
      options.exit_timeout = std::chrono::milliseconds(std::atoi(words[2]));
      words += 3;
      cluster = muster::launch(options);
    } else {
      cluster = muster::read_cluster_environment();
    }
  } catch (const muster::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 9;
  }
  return kDeeds.at(words[0])(words + 1);
}
