#include "comm/store_server.h"

#include <gtest/gtest.h>

#include "muster/cluster/detail/listening_socket.h"
#include "muster/cluster/detail/variables.h"
#include "muster/testing/gtest.h"

namespace muster::comm {
namespace {

ClusterEnvironment cluster_at(int port, const std::string& address = "127.0.0.1") {
  ClusterEnvironment cluster;
  cluster.main_address = address;
  cluster.main_port = port;
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.world_size = 2;
  return cluster;
}

int free_port() { return cluster::ListeningSocket(0, "127.0.0.1").port(); }

/// A server leaves a pipe of libuv's behind, so each test is a process of its own.
void in_its_own_process(const std::function<void()>& body) {
  testing::expect_processes(1, [&](const Communicator&) { body(); });
}

TEST(StoreServer, ListensOnItsAddressAlone) {
  in_its_own_process([] {
    const auto cluster = cluster_at(free_port(), "127.0.0.3");
    auto store = open_tcp_store(cluster, std::chrono::seconds(30));
    EXPECT_TRUE(cluster::listens_on_loopback_alone(cluster.main_port));
    cluster::ListeningSocket beside(cluster.main_port, "127.0.0.1");  // that address's port is free
    store->set("key", std::vector<std::uint8_t>{1});
    auto second = open_tcp_store(cluster, std::chrono::seconds(30));
    EXPECT_EQ(second->get("key"), std::vector<std::uint8_t>{1}) << "a group of the same process has another server";
  });
}

TEST(StoreServer, APortThatIsTakenIsNamed) {
  in_its_own_process([] {
    cluster::ListeningSocket taken(0, "127.0.0.1");
    EXPECT_THROW(open_tcp_store(cluster_at(taken.port()), std::chrono::seconds(1)), std::runtime_error);
  });
}

/// What one call says on stderr.
std::string said(const ClusterEnvironment& cluster, bool has_secret) {
  ::testing::internal::CaptureStderr();
  say_who_may_join(cluster, has_secret);
  return ::testing::internal::GetCapturedStderr();
}

TEST(StoreServer, WarnsOfAStoreThatOthersReachAndWithoutASecretOnly) {
  auto cluster = cluster_at(free_port());
  cluster.store_is_external = true;
  const auto words = said(cluster, false);
  EXPECT_NE(words.find("all addresses"), std::string::npos) << words;
  EXPECT_NE(words.find("MUSTER_SECRET"), std::string::npos) << words;
  EXPECT_EQ(said(cluster, true), "");
  cluster.rank = 1;
  EXPECT_EQ(said(cluster, false), "") << "only the main rank warns";
}

TEST(StoreServer, IsSilentOfAStoreOnTheLoopback) {
  cluster::ListeningSocket socket(0, "127.0.0.1");
  auto cluster = cluster_at(socket.port());
  cluster.store_is_external = true;
  EXPECT_EQ(said(cluster, false), "");
  in_its_own_process([] {
    const auto own = cluster_at(free_port());
    auto store = open_tcp_store(own, std::chrono::seconds(30));
    EXPECT_EQ(said(own, false), "");
  });
}

}  // namespace
}  // namespace muster::comm
