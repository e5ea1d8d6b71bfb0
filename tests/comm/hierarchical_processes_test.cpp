// Ranks on several hosts, which are processes of this one that MUSTER_HOST tells apart.
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/every_operation.h"
#include "comm/forked_ranks.h"
#include "comm/refused_memory.h"
#include "comm/shared_tensor.h"
#include "muster/base/error.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::thrown;
using testing::thrown_id;

/// Runs `body` on ranks of which each is on the host that its letter names.
std::vector<int> run_on_hosts(const std::string& hosts, const std::function<void(const ClusterEnvironment&)>& body) {
  return run_forked(static_cast<int>(hosts.size()), [&](const ClusterEnvironment& cluster) {
    ::setenv("MUSTER_HOST", std::string(1, hosts[cluster.rank]).c_str(), 1);
    body(cluster);
  });
}

class HierarchicalProcesses : public ::testing::TestWithParam<std::string> {};

TEST_P(HierarchicalProcesses, GiveTheBitsOfGloo) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  const std::string hosts = GetParam();
  const auto body = [&](const ClusterEnvironment& cluster) {
    Communicator ours = connect(cluster, {.backend = "auto"}), gloo = connect(cluster, {.backend = "gloo"});
    EXPECT_EQ(ours.backend(), "hierarchical");
    EXPECT_EQ(ours.backend_reason(), "shared memory on each of 2 hosts, gloo between them");
    for (int64_t elements : {0, 13, 1'100, 70'001, 300'000})
      for (auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kBool}) {
        if (elements > 100'000 && dtype != at::kFloat) continue;
        const auto mine = results_of(ours, elements, dtype), sent = results_of(gloo, elements, dtype);
        ASSERT_EQ(mine.size(), sent.size());
        for (std::size_t i = 0; i < sent.size(); ++i)
          ASSERT_EQ(difference_in_bits(mine[i], sent[i]), "") << i << " of " << elements << c10::toString(dtype);
      }
    const Communicator other = ours.duplicate(), part = ours.subgroup({0, 1});
    at::Tensor ones = at::ones({50'000});
    Work started = other.start_all_reduce(ones);
    if (cluster.rank < 2) {
      EXPECT_EQ(part.all_gather(at::full({3}, cluster.rank))[1][2].item<int>(), 1);
    }
    started.wait();
    EXPECT_EQ(ones[49'999].item<float>(), static_cast<float>(ours.size()));
  };
  EXPECT_EQ(run_on_hosts(hosts, body), std::vector<int>(hosts.size(), 0));
}

INSTANTIATE_TEST_SUITE_P(Hosts, HierarchicalProcesses, ::testing::Values("aab", "aabb", "aaabb"));

TEST(Hierarchical, AKilledProcessIsNoticedByAll) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  for (int victim : {1, 2})
    for (int turn_of_death : {0, 3, 10}) {
      const auto statuses = run_on_hosts("aabb", [&](const ClusterEnvironment& cluster) {
        const Communicator comm = connect(cluster, {.timeout = std::chrono::seconds(20)});
        const std::string message = thrown([&] {
          for (int turn = 0; turn < 100; ++turn) {
            if (comm.rank() == victim && turn == turn_of_death) ::raise(SIGKILL);
            comm.all_reduce(at::ones({turn % 2 ? 5 : 300'000}));
          }
        });
        EXPECT_TRUE(message.starts_with("MU052")) << message;
        EXPECT_NE(message.find("lost rank " + std::to_string(victim)), std::string::npos) << message;
      });
      std::vector<int> expected(4, 0);
      expected[victim] = SIGKILL;
      EXPECT_EQ(statuses, expected);
    }
}

TEST(Hierarchical, MemoryThatOneRankCannotHaveNoneHas) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  const auto body = [](const ClusterEnvironment& cluster) {
    const Communicator comm = connect(cluster);
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    for (int unable : {0, 2, 4}) {
      comm.barrier();
      const int next = ::dup(0);
      ::close(next);
      const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
      if (comm.rank() == unable) ::setrlimit(RLIMIT_NOFILE, &none);
      const at::Tensor tensor = shared_zeros(comm, 50'000, at::kFloat);
      ::setrlimit(RLIMIT_NOFILE, &before);
      EXPECT_EQ(tensor.storage().resizable(), unable < 4);
      comm.all_reduce(tensor.fill_(1));
      EXPECT_EQ(tensor.eq(4).sum().item<int64_t>(), 50'000);
    }
  };
  EXPECT_EQ(run_on_hosts("aabb", body), std::vector<int>(4, 0));
}

TEST(Hierarchical, NoMemoryForStagingIsAnErrorOnAllRanks) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  if (!may_refuse_memory()) GTEST_SKIP() << "this machine allows no seccomp filter";
  const auto body = [](const ClusterEnvironment& cluster) {
    const Communicator comm = connect(cluster, {.timeout = std::chrono::seconds(20)});
    comm.barrier();
    if (comm.rank() == 3) {
      ASSERT_TRUE(refuse_memory());
    }
    const std::string message = thrown([&] { comm.all_reduce(at::ones({50'000})); });
    EXPECT_TRUE(message.starts_with("MU402")) << message;
    EXPECT_NE(message.find("rank 3 found no memory for the"), std::string::npos) << message;
  };
  EXPECT_EQ(run_on_hosts("aabb", body), std::vector<int>(4, 0));
}

TEST(Hierarchical, AnAbortReachesAllHosts) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  const auto body = [](const ClusterEnvironment& cluster) {
    const Communicator comm = connect(cluster);
    comm.barrier();
    if (comm.rank() == 1) comm.abort("enough");
    const std::string message = thrown([&] { comm.all_reduce(at::ones({100'000})); });
    EXPECT_TRUE(message.starts_with("MU053") && message.find("enough") != std::string::npos) << message;
  };
  EXPECT_EQ(run_on_hosts("aabb", body), std::vector<int>(4, 0));
}

TEST(Hierarchical, RanksThatCannotAgreeOnGlooAndWhy) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  const auto expect_gloo = [](const std::string& hosts, const std::string& why) {
    const auto body = [&](const ClusterEnvironment& cluster) {
      const Communicator comm = connect(cluster);
      EXPECT_EQ(comm.backend(), "gloo");
      EXPECT_EQ(comm.backend_reason(), "no shared memory: " + why);
      comm.barrier();
      EXPECT_EQ(thrown_id([&] { (void)connect(cluster, {.backend = "hierarchical"}); }), "MU400");
    };
    EXPECT_EQ(run_on_hosts(hosts, body), std::vector<int>(hosts.size(), 0));
  };
  expect_gloo("ab", "no two ranks are on one host");
  expect_gloo("aba", "ranks 0 and 2 are on one host, but rank 1 between them is on another");
}

TEST(Hierarchical, OneRankWithoutMemoryMakesAllTakeGloo) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  const auto body = [](const ClusterEnvironment& cluster) {
    if (cluster.rank == 3) ::setenv("TMPDIR", "/nowhere", 1);
    const Communicator comm = connect(cluster);
    EXPECT_EQ(comm.backend(), "gloo");
    EXPECT_TRUE(comm.backend_reason().starts_with("no shared memory: rank 3: MU069")) << comm.backend_reason();
    comm.all_reduce(at::ones({100'000}));
    ::setenv("MUSTER_HOST", "here", 1);
    if (cluster.rank == 3) ::unsetenv("TMPDIR");
    EXPECT_EQ(connect(cluster, {.backend = "hierarchical"}).backend(), "shm");
  };
  EXPECT_EQ(run_on_hosts("aabb", body), std::vector<int>(4, 0));
}

}  // namespace
}  // namespace muster::comm
