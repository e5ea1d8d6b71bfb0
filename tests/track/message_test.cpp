#include <gtest/gtest.h>

#include "track/file_trackers.h"

namespace muster::track {
namespace {

// Source of the first two: the examples of "Encoding", protobuf.dev.
TEST(Message, IsEncodedAsTheDescriptionSays) {
  EXPECT_EQ(Message().integer(1, 150).text(), "\x08\x96\x01");
  EXPECT_EQ(Message().bytes(2, "testing").text(), "\x12\x07testing");
  EXPECT_EQ(Message().number(1, 1.0).text(), std::string("\x09\0\0\0\0\0\0\xf0\x3f", 9));
  EXPECT_EQ(Message().number(2, 1.0f).text(), std::string("\x15\0\0\x80\x3f", 5));
  EXPECT_EQ(Message().message(3, Message().integer(1, 150)).text(), "\x1a\x03\x08\x96\x01");
  EXPECT_EQ(Message().numbers(16, {1.0}).text(), std::string("\x82\x01\x08\0\0\0\0\0\0\xf0\x3f", 11));
  EXPECT_EQ(Message().integer(1, ~uint64_t{0}).text().size(), 11u);
}

}  // namespace
}  // namespace muster::track
