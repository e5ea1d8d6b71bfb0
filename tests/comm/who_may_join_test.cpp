// A job with a secret against whoever does not have it.
#include <cstdlib>
#include <thread>

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "cluster/listening_socket.h"
#include "comm/gloo_transport.h"
#include "muster/comm/rendezvous.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

const std::string kJobSecret(40, 's'), kOtherSecret(40, 'o');

ClusterEnvironment cluster_by_tcp(int rank, int port) {
  ClusterEnvironment cluster;
  cluster.rank = cluster.local_rank = rank;
  cluster.world_size = cluster.local_world_size = 2;
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.main_address = "127.0.0.1";
  cluster.main_port = port;
  return cluster;
}

/// What each of two processes, that meet in a file with these secrets (empty: none), ends with.
void expect_of_both(const std::vector<std::string>& secrets, const std::string& begin) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  testing::ProcessWorldOptions options;
  options.arguments = {std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()};
  options.label = secrets[0] + " " + secrets[1];
  const auto results = testing::run_processes(
      2,
      [&](const ClusterEnvironment& cluster) {
        if (!secrets[cluster.rank].empty()) ::setenv("MUSTER_SECRET", secrets[cluster.rank].c_str(), 1);
        const auto message =
            testing::thrown([&] { connect(cluster, {.rendezvous_timeout = std::chrono::seconds(20)}).barrier(); });
        EXPECT_TRUE(message.starts_with(begin)) << message;
        EXPECT_EQ(message.find(kJobSecret), std::string::npos) << message;
        return ::testing::Test::HasFailure() ? 1 : 0;
      },
      options);
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.output;
}

TEST(WhoMayJoin, RanksWithOneSecretMayAndOthersAreRefused) {
  expect_of_both({kJobSecret, kJobSecret}, "no error");
  expect_of_both({kJobSecret, kOtherSecret}, "MU067");
  expect_of_both({kJobSecret, ""}, "MU067");
  expect_of_both({"", kJobSecret}, "MU067");
}

TEST(WhoMayJoin, GroupsOfAJobWithASecretWork) {
  testing::expect_processes(1, [&](const Communicator&) {
    ::setenv("MUSTER_SECRET", kJobSecret.c_str(), 1);
    const int port = cluster::ListeningSocket(0, "127.0.0.1").port();
    const auto rank = [&](int number) {
      return testing::thrown([&] {
        for (int turn = 0; turn < 2; ++turn) {
          auto comm = connect(cluster_by_tcp(number, port), {.rendezvous_timeout = std::chrono::seconds(30)});
          auto pair = comm.subgroup({0, 1});
          at::Tensor one = at::ones({3});
          pair.all_reduce(one);
          EXPECT_EQ(one[0].item<float>(), 2.f);
          comm.barrier();
        }
      });
    };
    std::string peer;
    std::thread other([&] { peer = rank(1); });
    EXPECT_EQ(rank(0), "no error");
    other.join();
    EXPECT_EQ(peer, "no error");
  });
}

TEST(WhoMayJoin, WhoMerelyReachesTheStoreIsNoRank) {
  testing::expect_processes(1, [&](const Communicator&) {
    ::setenv("MUSTER_SECRET", kJobSecret.c_str(), 1);
    const int port = cluster::ListeningSocket(0, "127.0.0.1").port();
    std::thread stranger([&] {
      c10d::TCPStoreOptions options;
      options.port = static_cast<uint16_t>(port);
      options.waitWorkers = false;
      c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
      c10::make_intrusive<c10d::PrefixStore>("muster/1", store)->set("rank/1", std::vector<uint8_t>{1});
    });
    const auto message =
        testing::thrown([&] { connect(cluster_by_tcp(0, port), {.rendezvous_timeout = std::chrono::seconds(20)}); });
    stranger.join();
    EXPECT_TRUE(message.starts_with("MU067")) << message;
    EXPECT_NE(message.find("rank/1"), std::string::npos) << message;
  });
}

/// Two ends of one connection, that found each other in a store whose values nobody signs.
std::vector<std::string> ends(const std::vector<cluster::Secret>& secrets) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> messages(2);
  const auto end = [&](int rank) {
    messages[rank] = testing::thrown([&] {
      make_gloo_transport({"", true, std::chrono::seconds(20), store, secrets[rank]}, "world", rank, 2);
    });
  };
  std::thread peer(end, 1);
  end(0);
  peer.join();
  return messages;
}

TEST(WhoMayJoin, WhoMerelyReachesAPortIsNoRank) {
  const cluster::Secret ours(kJobSecret), theirs(kOtherSecret), none;
  for (const auto& message : ends({ours, ours})) EXPECT_EQ(message, "no error");
  for (const auto& secrets : {std::vector{ours, theirs}, std::vector{ours, none}}) {
    const auto messages = ends(secrets);
    EXPECT_TRUE(messages[0].starts_with("MU067")) << messages[0];
    EXPECT_NE(messages[0].find("as rank 1"), std::string::npos) << messages[0];
  }
}

}  // namespace
}  // namespace muster::comm
