#include "cluster/listening_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::cluster {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

bool answers(const std::string& address, int port) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address.c_str(), &place.sin_addr);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const bool connected = ::connect(fd, reinterpret_cast<sockaddr*>(&place), sizeof place) == 0;
  ::close(fd);
  return connected;
}

TEST(ListeningSocket, AnswersAtItsAddressAlone) {
  ListeningSocket socket(0, "127.0.0.2");
  EXPECT_EQ(bound_address(socket.fd()), "127.0.0.2");
  EXPECT_TRUE(answers("127.0.0.2", socket.port()));
  EXPECT_FALSE(answers(kLoopback, socket.port()));
}

TEST(ListeningSocket, OthersAreSeenToListenToo) {
  for (const char* address : {"127.0.0.2", "::1"}) {
    ListeningSocket socket(0, address);
    EXPECT_TRUE(listens_on_loopback_alone(socket.port())) << address;
  }
  const int closed = ListeningSocket(0, kLoopback).port();
  EXPECT_FALSE(listens_on_loopback_alone(closed)) << "nobody listens";
}

TEST(IsLoopback, KnowsItsNumbers) {
  for (const char* yes : {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"}) EXPECT_TRUE(is_loopback(yes)) << yes;
  for (const char* no : {"", "localhost", "10.0.0.1", "::", "::ffff:10.0.0.1", "fe80::1"})
    EXPECT_FALSE(is_loopback(no)) << no;
}

TEST(ListeningSocket, AnAddressOfAnotherHostIsRefused) {
  try {
    ListeningSocket socket(0, "203.0.113.1");  // for documentation: nobody's
    ADD_FAILURE() << "it listens on " << bound_address(socket.fd());
  } catch (const LaunchError& error) {
    EXPECT_EQ(error.id(), "MU033");
    EXPECT_NE(std::string(error.what()).find("203.0.113.1"), std::string::npos) << error.what();
  }
}

TEST(WhereToListen, TheLoopbackWhereItIsAskedFor) {
  for (const char* address : {"127.0.0.1", "127.0.0.7", "::1"}) EXPECT_EQ(where_to_listen(address), address);
  EXPECT_EQ(where_to_listen("localhost"), kLoopback);
}

TEST(WhereToListen, EverywhereForAnAddressThatIsNotThisHosts) {
  EXPECT_EQ(where_to_listen("203.0.113.1"), "");
  EXPECT_EQ(where_to_listen("no.such.host.invalid"), "");
}

TEST(WhereToListen, EverywhereWhereTheNameOfThisHostMeansItsLoopback) {
  char name[256] = "";
  ::gethostname(name, sizeof name);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(name, nullptr, &hints, &found) != 0) GTEST_SKIP() << "the name of this host has no address";
  bool loopback = false;
  for (auto* entry = found; entry; entry = entry->ai_next) {
    char number[NI_MAXHOST];
    ::getnameinfo(entry->ai_addr, entry->ai_addrlen, number, sizeof number, nullptr, 0, NI_NUMERICHOST);
    loopback = loopback || is_loopback(number);
  }
  ::freeaddrinfo(found);
  const auto where = where_to_listen(name);
  EXPECT_FALSE(is_loopback(where)) << "other nodes could not reach " << where;
  EXPECT_TRUE(loopback || !where.empty()) << "its own address was not seen";
}

TEST(WhereToListen, AnAddressOfThisHostItself) {
  ifaddrs* list = nullptr;
  ASSERT_EQ(::getifaddrs(&list), 0);
  std::string own;
  for (auto* entry = list; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET || !(entry->ifa_flags & IFF_UP)) continue;
    char number[NI_MAXHOST];
    ::getnameinfo(entry->ifa_addr, sizeof(sockaddr_in), number, sizeof number, nullptr, 0, NI_NUMERICHOST);
    if (!is_loopback(number)) own = number;
  }
  ::freeifaddrs(list);
  if (own.empty()) GTEST_SKIP() << "this host has no address but its loopback";
  EXPECT_EQ(where_to_listen(own), own);
}

TEST(ListeningSocket, FreePortsOfAnAddressDiffer) {
  std::vector<ListeningSocket> sockets;
  // Two addresses may have the same one.
  std::set<std::pair<std::string, int>> places;
  for (int i = 0; i < 50; ++i) {
    const std::string address = i % 2 == 0 ? kLoopback : "127.0.0.2";
    sockets.emplace_back(0, address);
    places.emplace(address, sockets.back().port());
  }
  EXPECT_EQ(places.size(), 50u);
}

TEST(ListeningSocket, ATakenPortIsRefusedWithMU033) {
  ListeningSocket first(0, kLoopback);
  for (const char* address : {kLoopback, ""}) {
    try {
      ListeningSocket second(first.port(), address);
      ADD_FAILURE() << "two sockets listen on one port";
    } catch (const LaunchError& error) {
      EXPECT_EQ(error.id(), "MU033");
      EXPECT_NE(std::string(error.what()).find(std::to_string(first.port())), std::string::npos);
    }
  }
}

TEST(ListeningSocket, ClosesItselfUnlessReleased) {
  int fd = -1, port = 0;
  {
    ListeningSocket socket(0, kLoopback);
    fd = socket.fd();
    port = socket.port();
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
  ListeningSocket again(port, kLoopback);
  EXPECT_EQ(again.port(), port);
  ListeningSocket moved = std::move(again);
  EXPECT_EQ(again.fd(), -1);
  const int owned = moved.release();
  EXPECT_NE(fcntl(owned, F_GETFD), -1);
  ::close(owned);
}

}  // namespace
}  // namespace muster::cluster
