#include "launcher/port.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "launcher/descriptor.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

TEST(Port, FreePortsDiffer) {
  std::vector<ListeningSocket> sockets;
  std::set<int> ports;
  for (int i = 0; i < 50; ++i) {
    sockets.emplace_back(0, i % 2 == 0);
    ports.insert(sockets.back().port());
  }
  EXPECT_EQ(ports.size(), 50u);
}

TEST(Port, ATakenPortIsRefusedWithMU033) {
  ListeningSocket first(0, true);
  for (bool loopback : {true, false}) {
    try {
      ListeningSocket second(first.port(), loopback);
      ADD_FAILURE() << "two sockets listen on one port";
    } catch (const LaunchError& error) {
      EXPECT_EQ(error.id(), "MU033");
      EXPECT_NE(std::string(error.what()).find(std::to_string(first.port())), std::string::npos);
    }
  }
}

TEST(Port, ClosesItselfUnlessReleased) {
  int fd = -1, port = 0;
  {
    ListeningSocket socket(0, true);
    fd = socket.fd();
    port = socket.port();
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
  ListeningSocket again(port, true);
  EXPECT_EQ(again.port(), port);
  ListeningSocket moved = std::move(again);
  EXPECT_EQ(again.fd(), -1);
  Descriptor owner(moved.release());
  EXPECT_NE(fcntl(owner.get(), F_GETFD), -1);
}

}  // namespace
}  // namespace muster::launcher
