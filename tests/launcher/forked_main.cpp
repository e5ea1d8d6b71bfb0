// A program whose ranks say how they were started. The first argument says what else it does.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "muster/cluster/cluster.h"
#include "muster/launcher/launch.h"

void keep_at_load();

namespace {

std::string variable(const char* name) { return std::getenv(name) ? std::getenv(name) : "-"; }

const std::string constructed_as = variable("RANK");

/// The variables with which this process was executed, whatever it has changed since.
bool was_forked() {
  std::ifstream file("/proc/self/environ");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.find("MUSTER_FORK_SERVER=") != std::string::npos;
}

void say_how() {
  std::printf("rank %s %s, constructed as %s, round %s, server %s, pid %d\n", variable("RANK").c_str(),
              was_forked() ? "forked" : "spawned", constructed_as.c_str(), variable("MUSTER_RESTART_COUNT").c_str(),
              variable("MUSTER_FORK_SERVER").c_str(), static_cast<int>(getpid()));
  std::fflush(stdout);
}

std::string without_digits(std::string text) {
  std::erase_if(text, [](char one) { return one >= '0' && one <= '9'; });
  return text;
}

void say_descriptors() {
  std::multiset<std::string> lines;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename());
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("/proc/")) continue;  // this listing
    lines.insert((number < 3 ? std::to_string(number) : "n") + " " + without_digits(target) + " " +
                 std::to_string(fcntl(number, F_GETFD)));
  }
  for (const auto& line : lines) std::printf("descriptor %s\n", line.c_str());
}

void say_variables() {
  std::set<std::string> lines;
  for (char** word = environ; *word; ++word) {
    std::string line = *word;
    // These are others in each job, or numbers of descriptors.
    for (auto name : {"MUSTER_JOB=", "MUSTER_JOB_START=", "MUSTER_SECRET=", "MASTER_PORT=", "MUSTER_STORE_FD=",
                      "MUSTER_REPORT_FD="})
      if (line.starts_with(name)) line = name;
    lines.insert(line);
  }
  for (const auto& line : lines) std::printf("variable %s\n", line.c_str());
}

/// All that a rank inherits, without what is different in each job.
void say_state(int count, char** words) {
  say_variables();
  say_descriptors();
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("Sig") || line.starts_with("Threads") || line.starts_with("Name"))
      if (!line.starts_with("SigQ")) std::printf("%s\n", line.c_str());
  int dies_by = 0;
  prctl(PR_GET_PDEATHSIG, &dies_by);
  std::printf("leads its group %d, dies with its parent by %d, umask %o\n", getpgrp() == getpid(), dies_by, umask(0));
  std::printf("in %s as %s with %d words\n", std::filesystem::current_path().c_str(), words[0], count);
  const auto cluster = muster::read_cluster_environment();
  std::printf("rank %d of %d, local %d, store %d, report %d, threads %s\n", cluster.rank, cluster.world_size,
              cluster.local_rank, cluster.store_listen_fd >= 0, cluster.report_fd >= 0,
              variable("OMP_NUM_THREADS").c_str());
}

}  // namespace

int main(int count, char** words) {
  keep_at_load();
  const std::string deed = count > 1 ? words[1] : "";
  if (deed == "state") say_state(count, words);
  else say_how();
  const bool again = variable("MUSTER_RESTART_COUNT") != "0";
  if (deed == "fail_once") return again ? 0 : 3;
  if (deed == "wait")
    for (;;) pause();
  if (deed == "child") return std::system((std::string(words[0]) + " how").c_str());
}
