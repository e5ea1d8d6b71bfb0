#include "muster/comm/rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "cluster/report.h"
#include "comm/agreement.h"
#include "comm/stores.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/temporary_folder.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

/// A listening socket on a free port, as a launcher makes it.
struct Listener {
  Listener() {
    fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(fd, 64), 0);
    EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port = ntohs(address.sin_port);
  }
  int fd = -1;
  int port = 0;
};

std::filesystem::path temporary_file(const std::string& name) {
  return std::filesystem::temp_directory_path() / (name + std::to_string(::getpid()));
}

ClusterEnvironment file_cluster(int rank, int world, const std::filesystem::path& path) {
  ClusterEnvironment cluster;
  cluster.rank = cluster.local_rank = rank;
  cluster.world_size = cluster.local_world_size = world;
  cluster.rendezvous = RendezvousKind::file;
  cluster.store_path = path.string();
  return cluster;
}

ClusterEnvironment tcp_cluster(int rank, int world, int port, int fd = -1) {
  ClusterEnvironment cluster;
  cluster.rank = cluster.local_rank = rank;
  cluster.world_size = cluster.local_world_size = world;
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.main_address = "127.0.0.1";
  cluster.main_port = port;
  cluster.store_listen_fd = fd;
  return cluster;
}

/// A server that took a socket over stays as long as its process does, and of any server a pipe of libuv's.
void in_a_process_of_its_own(const std::function<void()>& body) {
  testing::expect_processes(1, [&](const Communicator&) { body(); });
}

TEST(Rendezvous, AWorldOfOneMeetsNobody) {
  ClusterEnvironment alone;
  alone.store_path = "/nowhere/at/all";
  EXPECT_EQ(connect(alone).size(), 1);
}

TEST(Rendezvous, ATimeOutMustBePositive) {
  using namespace std::chrono_literals;
  for (const GroupOptions& wrong : {GroupOptions{.timeout = 0s}, GroupOptions{.rendezvous_timeout = -1min},
                                    GroupOptions{.timeout = std::chrono::hours(200'001)}})
    EXPECT_EQ(testing::thrown_id([&] { connect(ClusterEnvironment(), wrong); }), "MU327");
  EXPECT_EQ(testing::thrown_id([] { connect(ClusterEnvironment(), {.rendezvous_timeout = 1h, .timeout = 1ms}); }),
            "no error");
}

TEST(Rendezvous, NamesTheRanksThatAreMissing) {
  in_a_process_of_its_own([] {
    auto path = temporary_file("muster-missing-");
    Listener listener;
    for (const ClusterEnvironment& cluster :
         {file_cluster(1, 4, path), tcp_cluster(0, 4, listener.port, listener.fd)}) {
      std::string message =
          testing::thrown([&] { connect(cluster, {.rendezvous_timeout = std::chrono::milliseconds(300)}); });
      EXPECT_TRUE(message.starts_with("MU057")) << message;
      EXPECT_NE(message.find(cluster.rank == 1 ? "missing: 0, 2, 3." : "missing: 1, 2, 3."), std::string::npos)
          << message;
    }
    EXPECT_FALSE(std::filesystem::exists(path));
  });
}

TEST(Rendezvous, AfterFiveSecondsOneRankSaysWhoIsMissing) {
  auto path = temporary_file("muster-slow-");
  Listener listener;
  ::close(listener.fd);
  ::testing::internal::CaptureStderr();
  // A file's store looks at the clock in whole seconds.
  const auto wait_as = [](ClusterEnvironment cluster) {
    return std::thread([cluster] {
      testing::thrown([&] { connect(cluster, {.rendezvous_timeout = std::chrono::milliseconds(6500)}); });
    });
  };
  std::thread waiting[] = {wait_as(file_cluster(1, 4, path)), wait_as(file_cluster(3, 4, path)),
                           wait_as(tcp_cluster(1, 2, listener.port))};
  for (auto& thread : waiting) thread.join();
  const auto said = ::testing::internal::GetCapturedStderr();
  const std::string line = " s for 4 ranks to rendezvous; missing: 0, 2\n";
  ASSERT_NE(said.find(line), std::string::npos) << said;
  EXPECT_EQ(said.find(line), said.rfind(line)) << said;
  EXPECT_NE(
      said.find("has waited 5 s for the store at 127.0.0.1:" + std::to_string(listener.port) + ", which rank 0 opens"),
      std::string::npos)
      << said;
}

TEST(Rendezvous, ALostPeerIsToldByItsNumberInTheJob) {
  auto path = temporary_file("muster-lost-");
  const cluster::Report reports[] = {cluster::Report::make(), cluster::Report::make(), cluster::Report::make()};
  const auto rank = [&](int number) {
    ClusterEnvironment cluster = file_cluster(number, 3, path);
    cluster.report_fd = reports[number].descriptor();
    auto world =
        connect(cluster, {.rendezvous_timeout = std::chrono::seconds(30), .timeout = std::chrono::seconds(30)});
    auto part = world.subgroup({1, 2});
    if (number == 1) {
      EXPECT_EQ(testing::thrown([&] { part.barrier(); }).substr(0, 5), "MU052");
      EXPECT_EQ(testing::thrown([&] { part.barrier(); }).substr(0, 5), "MU052");
    }
    if (number == 2) part = Communicator();
    world.barrier();
    if (number == 1) testing::thrown([&] { part.barrier(); });
    if (number == 0) report_lost_rank(world, 2, "the user's own");
  };
  std::thread others[] = {std::thread(rank, 1), std::thread(rank, 2)};
  rank(0);
  for (auto& thread : others) thread.join();
  EXPECT_EQ(reports[0].read().lost_rank, 2);
  EXPECT_EQ(reports[0].read().reason, "the user's own");
  EXPECT_EQ(reports[1].read().lost_rank, 2);
  EXPECT_EQ(reports[2].read().lost_rank, -1);
}

TEST(Rendezvous, AStoreThatIsNotThereIsNamed) {
  Listener listener;
  ::close(listener.fd);
  std::string message = testing::thrown(
      [&] { connect(tcp_cluster(1, 2, listener.port), {.rendezvous_timeout = std::chrono::milliseconds(300)}); });
  EXPECT_TRUE(message.starts_with("MU058")) << message;
  EXPECT_NE(message.find("127.0.0.1:" + std::to_string(listener.port)), std::string::npos) << message;
}

/// Two ranks in threads of this process, each by its own connection.
void two_ranks(const ClusterEnvironment& first, const ClusterEnvironment& second,
               const std::function<void(const Communicator&)>& body) {
  std::string failure;
  std::thread peer([&] {
    failure = testing::thrown([&] { body(connect(second, {.rendezvous_timeout = std::chrono::seconds(30)})); });
  });
  EXPECT_EQ(testing::thrown([&] { body(connect(first, {.rendezvous_timeout = std::chrono::seconds(30)})); }),
            "no error");
  peer.join();
  EXPECT_EQ(failure, "no error");
}

void sum_is_two(const Communicator& comm) {
  at::Tensor one = at::ones({3});
  comm.all_reduce(one);
  EXPECT_EQ(one[2].item<float>(), 2.f);
}

TEST(Rendezvous, TakesOverASocketAndConnectsTwice) {
  in_a_process_of_its_own([] {
    Listener listener;
    two_ranks(
        tcp_cluster(0, 2, listener.port, listener.fd), tcp_cluster(1, 2, listener.port), [&](const Communicator& comm) {
          sum_is_two(comm);
          Communicator second =
              connect(tcp_cluster(comm.rank(), 2, listener.port), {.rendezvous_timeout = std::chrono::seconds(30)});
          sum_is_two(second);
          sum_is_two(comm);
        });
  });
}

TEST(Rendezvous, AGroupMayFollowOneThatIsGoneThoughTheLauncherHoldsThePort) {
  in_a_process_of_its_own([] {
    Listener listener;
    const int launchers = ::dup(listener.fd);
    two_ranks(tcp_cluster(0, 2, listener.port, listener.fd), tcp_cluster(1, 2, listener.port), sum_is_two);
    two_ranks(tcp_cluster(0, 2, listener.port), tcp_cluster(1, 2, listener.port), sum_is_two);
    ::close(launchers);
  });
}

TEST(Rendezvous, JoinsAStoreThatSomebodyElseRuns) {
  in_a_process_of_its_own([] {
    Listener listener;
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(listener.port);
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = listener.fd;
    auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    for (std::string restart : {"restart-0/", "restart-1/"}) {
      ClusterEnvironment first = tcp_cluster(0, 2, listener.port), second = tcp_cluster(1, 2, listener.port);
      for (ClusterEnvironment* cluster : {&first, &second})
        cluster->store_is_external = true, cluster->store_prefix = restart;
      two_ranks(first, second, sum_is_two);
    }
  });
}

TEST(Rendezvous, GroupsComeAndGoInOneFileWithoutWaitingForEachOther) {
  auto path = temporary_file("muster-turns-");
  std::string failure;
  const auto rank = [&](int number) {
    for (int turn = 0; turn < 100; ++turn)
      sum_is_two(connect(file_cluster(number, 2, path), {.rendezvous_timeout = std::chrono::seconds(30)}));
  };
  std::thread peer([&] { failure = testing::thrown([&] { rank(1); }); });
  EXPECT_EQ(testing::thrown([&] { rank(0); }), "no error");
  peer.join();
  EXPECT_EQ(failure, "no error");
  EXPECT_FALSE(std::filesystem::exists(path));
}

/// A folder for temporary files that is open to all, as /tmp is, and what another user plants there.
class SharedFolder {
 public:
  SharedFolder() {
    if (const char* variable = std::getenv("TMPDIR")) before_ = variable;
    ::unsetenv("TMPDIR");  // the test program's own folder lets no other user in
    folder_ = new_temporary_folder("muster-shared");
    ::chmod(folder_.c_str(), 01777);
    ::setenv("TMPDIR", folder_.c_str(), 1);
  }
  ~SharedFolder() {
    if (planter_ > 0) ::kill(planter_, SIGKILL), ::waitpid(planter_, nullptr, 0);
    before_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  /// Another user links `name` to `target` (or makes it a file, without a target) and holds the lock of its lock file.
  void plant(const std::string& name, const std::string& target) {
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    planter_ = ::fork();
    if (planter_ == 0) {
      const std::string path = folder_ / name, lock = path + ".lock";
      const bool changed = ::setuid(65534) == 0;
      const bool planted = target.empty() ? ::open(path.c_str(), O_CREAT | O_RDWR, 0666) >= 0
                                          : ::symlink(target.c_str(), path.c_str()) == 0;
      const int held = ::open(lock.c_str(), O_CREAT | O_RDWR, 0666);
      ::fchmod(held, 0666);
      const char good = changed && planted && ::flock(held, LOCK_EX) == 0;
      [[maybe_unused]] const auto written = ::write(told[1], &good, 1);
      for (;;) ::pause();
    }
    char good = 0;
    EXPECT_EQ(::read(told[0], &good, 1), 1);
    EXPECT_TRUE(good) << "the other user could not plant " << name;
    for (int end : told) ::close(end);
  }
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

 private:
  std::filesystem::path folder_;
  std::string before_;
  pid_t planter_ = -1;
};

ClusterEnvironment slurm_cluster(int rank) {
  Environment variables{{"SLURM_PROCID", std::to_string(rank)},
                        {"SLURM_LOCALID", std::to_string(rank)},
                        {"SLURM_NTASKS", "2"},
                        {"SLURM_NODEID", "0"},
                        {"SLURM_NNODES", "1"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_JOB_ID", "77"},
                        {"TMPDIR", ::getenv("TMPDIR")}};
  return read_cluster_environment(variables);
}

TEST(Rendezvous, AJobOnOneNodeIsNotStalledByWhatAnotherUserPlanted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  SharedFolder folder;
  { std::ofstream(folder / "victim") << "mine"; }
  folder.plant("muster-77-0-0.store", folder / "victim");
  std::string failure;
  const auto rank = [](int number) {
    sum_is_two(connect(slurm_cluster(number), {.rendezvous_timeout = std::chrono::seconds(5)}));
  };
  std::thread peer([&] { failure = testing::thrown([&] { rank(1); }); });
  EXPECT_EQ(testing::thrown([&] { rank(0); }), "no error");
  peer.join();
  EXPECT_EQ(failure, "no error");
  std::string word;
  std::ifstream(folder / "victim") >> word;
  EXPECT_EQ(word, "mine");
  EXPECT_TRUE(std::filesystem::is_empty(private_folder())) << "a file of the job stays behind";
}

TEST(Rendezvous, AFileOfAnotherUserIsRefusedAtOnce) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  for (const std::string target : {"", "/etc/passwd"}) {
    SharedFolder folder;
    folder.plant("meeting", target);
    std::string message = testing::thrown(
        [&] { connect(file_cluster(0, 2, folder / "meeting"), {.rendezvous_timeout = std::chrono::seconds(60)}); });
    EXPECT_TRUE(message.starts_with("MU069")) << message;
    EXPECT_NE(message.find(folder / "meeting"), std::string::npos) << message;
  }
}

TEST(Rendezvous, ALinkToAFileOfOnesOwnIsRefused) {
  SharedFolder folder;
  { std::ofstream(folder / "victim") << "mine"; }
  std::filesystem::create_symlink(folder / "victim", folder / "meeting");
  std::string message = testing::thrown(
      [&] { connect(file_cluster(0, 2, folder / "meeting"), {.rendezvous_timeout = std::chrono::seconds(1)}); });
  EXPECT_TRUE(message.starts_with("MU069")) << message;
  EXPECT_EQ(std::filesystem::file_size(folder / "victim"), 4u);
}

TEST(Rendezvous, AFileIsGoneAfterwards) {
  auto path = temporary_file("muster-file-");
  two_ranks(file_cluster(0, 2, path), file_cluster(1, 2, path), sum_is_two);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".lock"));
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".users"));
}

/// Rank 0 joins in a process of its own, which then is killed.
void join_and_be_killed(const ClusterEnvironment& cluster) {
  const pid_t rank = ::fork();
  if (rank == 0) {
    const StoreFile file(cluster, 10);
    ::raise(SIGKILL);
  }
  ::waitpid(rank, nullptr, 0);
}

TEST(Rendezvous, AFileThatKilledRanksLeftIsBegunAnew) {
  const auto path = temporary_file("muster-killed-");
  join_and_be_killed(file_cluster(0, 2, path));
  ASSERT_TRUE(std::filesystem::exists(path));
  {
    const StoreFile first(file_cluster(0, 2, path), 10);
    EXPECT_EQ(first.turn(), 1);
    join_and_be_killed(file_cluster(1, 2, path));  // rank 0 lives, so the file stays as it is
    const StoreFile second(file_cluster(1, 2, path), 10);
    EXPECT_EQ(second.turn(), 2);
  }
  join_and_be_killed(file_cluster(0, 2, path));
  two_ranks(file_cluster(0, 2, path), file_cluster(1, 2, path), sum_is_two);
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace muster::comm
