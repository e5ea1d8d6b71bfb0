#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "comm/shared_memory/segment.h"
#include "comm/wait_policy.h"
#include "muster/base/temporary_folder.h"
#include "muster/comm/rendezvous.h"

namespace muster::comm {

/// Why forked ranks cannot start threads, as gloo does; null if they can.
inline const char* no_threads_in_forks() {
#if defined(__SANITIZE_THREAD__)
  return "ThreadSanitizer ends a forked process that starts threads; the same algorithms run with ranks as threads";
#else
  return nullptr;
#endif
}

/// Processes that are forked from the test, so that many of them are cheap, and watched until they end.
class ForkedRanks {
 public:
  /// `body` returns the exit code.
  void start(const std::function<int()>& body) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      at::set_num_threads(1);  // the threads of the test's process are not in this one
      ::_exit(body());
    }
    pids_.push_back(pid);
    watched_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  }
  /// False if one of them still lives then.
  bool ended(std::chrono::milliseconds patience) const {
    const auto deadline = TimePoint::clock::now() + patience;
    return std::all_of(watched_.begin(), watched_.end(), [&](const Descriptor& process) {
      pollfd polled{process.get(), POLLIN, 0};
      return ::poll(&polled, 1, static_cast<int>(left_until(deadline).count())) == 1;
    });
  }
  void send(int signal) const {
    for (const pid_t pid : pids_) ::kill(pid, signal);
  }
  std::vector<int> statuses() const {
    std::vector<int> all;
    for (const pid_t pid : pids_) ::waitpid(pid, &all.emplace_back(), 0);
    return all;
  }

 private:
  std::vector<pid_t> pids_;
  std::vector<Descriptor> watched_;
};

inline ClusterEnvironment forked_cluster(int rank, int size) {
  ClusterEnvironment cluster;
  cluster.rank = cluster.local_rank = rank;
  cluster.world_size = cluster.local_world_size = size;
  cluster.launcher = LauncherKind::muster;
  return cluster;
}

/// Runs `body` as the ranks of a job; a failed assertion there fails the test. Returns how they ended, as waitpid()
/// says.
inline std::vector<int> run_forked(int size, const std::function<void(const ClusterEnvironment&)>& body) {
  const auto folder = new_temporary_folder("forked-ranks");
  ForkedRanks ranks;
  std::fflush(nullptr);
  for (int rank = 0; rank < size; ++rank)
    ranks.start([&, rank] {
      ClusterEnvironment cluster = forked_cluster(rank, size);
      cluster.rendezvous = RendezvousKind::file;
      cluster.store_path = (folder / "store").string();
      int code = 70;
      try {
        body(cluster);
        code = ::testing::Test::HasFailure() ? 1 : 0;
      } catch (const std::exception& failure) {
        std::cerr << "rank " << rank << ": " << failure.what() << std::endl;
      }
      std::fflush(nullptr);
      return code;
    });
  EXPECT_TRUE(ranks.ended(std::chrono::minutes(1))) << "a rank is stuck";
  ranks.send(SIGKILL);
  auto statuses = ranks.statuses();
  std::filesystem::remove_all(folder);
  return statuses;
}

/// The same, with the ranks connected, and expects that all end well.
inline void expect_forked(int size, const std::function<void(Communicator)>& body, const GroupOptions& options) {
  for (const int status : run_forked(size, [&](const ClusterEnvironment& cluster) { body(connect(cluster, options)); }))
    EXPECT_EQ(status, 0);
}

}  // namespace muster::comm
