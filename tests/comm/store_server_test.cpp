#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/descriptor.h"
#include "base/variables.h"
#include "cluster/listening_socket.h"
#include "comm/stores.h"
#include "muster/comm/rendezvous.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"

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

/// A server that is no store: a thread of this process accepts connections, and behaves so with each.
class Stranger {
 public:
  using Behavior = std::function<void(int connection)>;
  explicit Stranger(Behavior behave)
      : socket_(0, "127.0.0.1"), accepts_([this, behave = std::move(behave)] {
          for (;;) {
            const Descriptor connection(::accept(socket_.fd(), nullptr, nullptr));
            if (!connection) return;
            behave(connection.get());
          }
        }) {}
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() {
    ::shutdown(socket_.fd(), SHUT_RDWR);
    accepts_.join();
  }
  int port() const { return socket_.port(); }

 private:
  cluster::ListeningSocket socket_;
  std::thread accepts_;
};

void wait_for_end(int connection) {
  for (char letter = 0; ::recv(connection, &letter, 1, 0) > 0;) continue;
}

void answer(int connection, const std::string& words) {
  ::send(connection, words.data(), words.size(), MSG_NOSIGNAL);
  wait_for_end(connection);
}

/// As many servers of HTTP do: first it waits for a line.
void answer_a_line(int connection) {
  char letter = 0;
  while (letter != '\n' && ::recv(connection, &letter, 1, 0) > 0) continue;
  answer(connection, "HTTP/1.1 400 Bad Request\r\nServer: notebook\r\n\r\n");
}

std::string failure_at(const ClusterEnvironment& cluster, std::chrono::milliseconds timeout) {
  try {
    open_tcp_store(cluster, timeout);
  } catch (const std::exception& failure) {
    return failure.what();
  }
  return "no error";
}

ClusterEnvironment joining(int port, const std::string& address = "127.0.0.1") {
  auto cluster = cluster_at(port, address);
  cluster.rank = cluster.local_rank = 1;
  return cluster;
}

std::ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

/// Joining at this port fails within the time-out, with these words, and leaves neither threads nor descriptors behind.
void expect_words(const std::string& words, int port, const std::string& address = "127.0.0.1") {
  const auto threads = entries("/proc/self/task"), descriptors = entries("/proc/self/fd");
  const auto said = failure_at(joining(port, address), std::chrono::milliseconds(200));
  EXPECT_NE(said.find(words), std::string::npos) << said << "\nwanted: " << words;
  EXPECT_EQ(entries("/proc/self/task"), threads) << words;
  EXPECT_EQ(entries("/proc/self/fd"), descriptors) << words;
}

TEST(StoreServer, SaysWhatIsThereInsteadOfAStore) {
  in_its_own_process([] {
    expect_words("accepts connections, but does not answer as a store", Stranger(wait_for_end).port());
    expect_words("closed the connection without an answer", Stranger([](int) {}).port());
    expect_words("it sent \"HTTP/1.1 400 Bad Request\"", Stranger(answer_a_line).port());
    const Stranger talks([](int connection) { answer(connection, "SSH-2.0-\x01OpenSSH\r\n"); });
    expect_words("it sent \"SSH-2.0-?OpenSSH\"", talks.port());
    const Stranger short_answer([](int connection) { ::send(connection, "no", 2, MSG_NOSIGNAL); });
    expect_words("it sent \"no\"", short_answer.port());
    expect_words("nothing listens there", free_port());
    expect_words("the name 'muster.invalid' does not resolve", free_port(), "muster.invalid");
  });
}

TEST(StoreServer, SaysThatAListenerAcceptsNothing) {
  in_its_own_process([] {
    cluster::ListeningSocket listener(0, "127.0.0.1");
    expect_words("accepts connections, but does not answer as a store", listener.port());
    ASSERT_EQ(::listen(listener.fd(), 0), 0);  // one more connection fills its queue, and packets are dropped
    const auto address = [&] {
      sockaddr_in place{};
      place.sin_family = AF_INET;
      place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      place.sin_port = htons(static_cast<std::uint16_t>(listener.port()));
      return place;
    }();
    std::vector<Descriptor> waiting;
    for (int i = 0; i < 4; ++i) {
      waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      ::connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
    expect_words("nothing answers there", listener.port());
  });
}

TEST(StoreServer, IsFoundOnceAStrangerHasGone) {
  in_its_own_process([] {
    int port = 0;
    {
      const Stranger stranger(answer_a_line);
      port = stranger.port();
      EXPECT_NE(failure_at(joining(port), std::chrono::milliseconds(200)), "no error");
    }
    auto server = open_tcp_store(cluster_at(port), std::chrono::seconds(30));
    auto client = open_tcp_store(joining(port, "localhost"), std::chrono::seconds(30));
    client->set("key", std::vector<std::uint8_t>{1});
    EXPECT_EQ(server->get("key"), std::vector<std::uint8_t>{1});
    EXPECT_EQ(client->clone()->get("key"), std::vector<std::uint8_t>{1});
  });
}

TEST(StoreServer, IsFoundWithEitherServerOfC10d) {
  for (const bool uv : {false, true})
    in_its_own_process([uv] {
      cluster::ListeningSocket socket(0, "127.0.0.1");
      c10d::TCPStoreOptions options;
      options.port = static_cast<std::uint16_t>(socket.port());
      options.isServer = true;
      options.waitWorkers = false;
      options.useLibUV = uv;
      options.masterListenFd = socket.release();
      const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
      const auto client = open_tcp_store(joining(options.port), std::chrono::seconds(30));
      EXPECT_EQ(client->add("count", 2), 2);
    });
}

/// Rank 0 in a process of its own: it opens the store at `port`, and is stopped when `may_stop` says so.
template <class F>
pid_t rank_that_stops(int port, F may_stop) {
  const pid_t rank = ::fork();
  if (rank == 0) {
    auto store = open_tcp_store(cluster_at(port), std::chrono::seconds(30));
    may_stop(*store);
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  return rank;
}

void end(pid_t rank) {
  ::kill(rank, SIGKILL);
  ::waitpid(rank, nullptr, 0);
}

TEST(StoreServer, ARankThatIsStoppedIsNoStore) {
  in_its_own_process([] {
    const int port = free_port();
    const pid_t rank = rank_that_stops(port, [](c10d::Store&) {});
    ::waitpid(rank, nullptr, WUNTRACED);
    expect_words("accepts connections, but does not answer as a store: it is stopped, or another program", port);
    end(rank);
  });
}

TEST(StoreServer, ARankThatIsStoppedWhileOthersMeetEndsTheWait) {
  in_its_own_process([] {
    const int port = free_port();
    const pid_t rank = rank_that_stops(port, [](c10d::Store& store) { store.wait({"muster/1/rank/1"}); });
    open_tcp_store(joining(port), std::chrono::seconds(30));
    const auto said =
        testing::thrown([&] { connect(joining(port), {.rendezvous_timeout = std::chrono::milliseconds(700)}); });
    EXPECT_TRUE(said.starts_with("MU058")) << said;
    EXPECT_NE(said.find("has stopped answering"), std::string::npos) << said;
    end(rank);
  });
}

}  // namespace
}  // namespace muster::comm
