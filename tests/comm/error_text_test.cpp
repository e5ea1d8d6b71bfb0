#include "comm/error_text.h"

#include <gtest/gtest.h>

namespace muster::comm {
namespace {

const std::string kGloo =
    "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:51324. This "
    "is "
    "typically caused by a remote worker crashing.";

TEST(Words, BuildPathsAndStackFramesStayOut) {
  EXPECT_EQ(short_error_text(kGloo).substr(0, 25), "Connection closed by peer");
  EXPECT_EQ(short_error_text("wrong\nException raised from f at a.cpp:1\nframe #0: g"), "wrong");
  EXPECT_EQ(short_error_text("[a note] stays"), "[a note] stays");
  EXPECT_EQ(short_error_text("[rank:x] stays"), "[rank:x] stays");
  EXPECT_EQ(short_error_text(""), "");
}

TEST(Words, WhatIsLongEndsAfterAWord) {
  EXPECT_EQ(short_error_text("one two three", 9), "one two ...");
  EXPECT_EQ(short_error_text("one two three", 13), "one two three");
  EXPECT_EQ(short_error_text("endless", 3), "end ...");
}

TEST(Words, ASentenceIsTakenWithoutItsStop) {
  EXPECT_EQ(first_sentence(kGloo), "Connection closed by peer [127.0.0.1]:51324");
  EXPECT_EQ(first_sentence("its thread left the group."), "its thread left the group");
}

}  // namespace
}  // namespace muster::comm
