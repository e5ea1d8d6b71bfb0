#include "muster/dist/rendezvous.h"

#include <ATen/Functions.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "muster/base/error.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"

namespace muster::dist {
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

Cluster file_cluster(int rank, int world, const std::filesystem::path& path) {
  Cluster cluster;
  cluster.rank = cluster.local_rank = rank;
  cluster.world_size = cluster.local_world_size = world;
  cluster.rendezvous = RendezvousKind::file;
  cluster.store_path = path.string();
  return cluster;
}

Cluster tcp_cluster(int rank, int world, int port, int fd = -1) {
  Cluster cluster;
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
  Cluster alone;
  alone.store_path = "/nowhere/at/all";
  EXPECT_EQ(connect(alone).size(), 1);
}

TEST(Rendezvous, NamesTheRanksThatAreMissing) {
  in_a_process_of_its_own([] {
    auto path = temporary_file("muster-missing-");
    Listener listener;
    for (const Cluster& cluster : {file_cluster(1, 4, path), tcp_cluster(0, 4, listener.port, listener.fd)}) {
      std::string message = testing::thrown([&] { connect(cluster, {.rendezvous_timeout_seconds = 0.3}); });
      EXPECT_TRUE(message.starts_with("MU057")) << message;
      EXPECT_NE(message.find(cluster.rank == 1 ? "missing: 0, 2, 3." : "missing: 1, 2, 3."), std::string::npos) << message;
    }
    EXPECT_FALSE(std::filesystem::exists(path));
  });
}

TEST(Rendezvous, AStoreThatIsNotThereIsNamed) {
  Listener listener;
  ::close(listener.fd);
  std::string message = testing::thrown([&] { connect(tcp_cluster(1, 2, listener.port), {.rendezvous_timeout_seconds = 0.3}); });
  EXPECT_TRUE(message.starts_with("MU058")) << message;
  EXPECT_NE(message.find("127.0.0.1:" + std::to_string(listener.port)), std::string::npos) << message;
}

/// Two ranks in threads of this process, each by its own connection.
void two_ranks(const Cluster& first, const Cluster& second, const std::function<void(const Communicator&)>& body) {
  std::string failure;
  std::thread peer([&] { failure = testing::thrown([&] { body(connect(second, {.rendezvous_timeout_seconds = 30})); }); });
  EXPECT_EQ(testing::thrown([&] { body(connect(first, {.rendezvous_timeout_seconds = 30})); }), "no error");
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
    two_ranks(tcp_cluster(0, 2, listener.port, listener.fd), tcp_cluster(1, 2, listener.port), [&](const Communicator& comm) {
      sum_is_two(comm);
      Communicator second = connect(tcp_cluster(comm.rank(), 2, listener.port), {.rendezvous_timeout_seconds = 30});
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
      Cluster first = tcp_cluster(0, 2, listener.port), second = tcp_cluster(1, 2, listener.port);
      for (Cluster* cluster : {&first, &second}) cluster->store_is_external = true, cluster->store_prefix = restart;
      two_ranks(first, second, sum_is_two);
    }
  });
}

TEST(Rendezvous, GroupsComeAndGoInOneFileWithoutWaitingForEachOther) {
  auto path = temporary_file("muster-turns-");
  std::string failure;
  const auto rank = [&](int number) {
    for (int turn = 0; turn < 100; ++turn) sum_is_two(connect(file_cluster(number, 2, path), {.rendezvous_timeout_seconds = 30}));
  };
  std::thread peer([&] { failure = testing::thrown([&] { rank(1); }); });
  EXPECT_EQ(testing::thrown([&] { rank(0); }), "no error");
  peer.join();
  EXPECT_EQ(failure, "no error");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Rendezvous, AFileIsGoneAfterwards) {
  auto path = temporary_file("muster-file-");
  two_ranks(file_cluster(0, 2, path), file_cluster(1, 2, path), sum_is_two);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".lock"));
}

}  // namespace
}  // namespace muster::dist
