#include "comm/handshake.h"

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

const cluster::Secret kGreeter(std::string(32, 's')), kStranger(std::string(32, 'o'));

/// What rank 0 says to the answer of its peer, which is rank 1 by its own words.
std::string met(Handshake& zero, Handshake& one) {
  return testing::thrown([&] {
    zero.take_challenge(1, one.challenge());
    one.take_challenge(0, zero.challenge());
    zero.check_response(1, one.response(0));
  });
}

TEST(Handshake, RanksWithOneSecretLetEachOtherIn) {
  Handshake zero(kGreeter, "world", 0, 2), one(kGreeter, "world", 1, 2);
  EXPECT_TRUE(zero.has_secret());
  EXPECT_EQ(met(zero, one), "no error");
  EXPECT_EQ(testing::thrown([&] { one.check_response(0, zero.response(1)); }), "no error");
}

TEST(Handshake, WithoutASecretNobodyAsks) {
  Handshake zero({}, "world", 0, 2), one({}, "world", 1, 2);
  EXPECT_FALSE(zero.has_secret());
  EXPECT_EQ(testing::thrown([&] { zero.take_challenge(1, one.challenge()); }), "no error");
}

TEST(Handshake, AnotherSecretGroupOrRankIsRefused) {
  for (auto other : {Handshake(kStranger, "world", 1, 3), Handshake(kGreeter, "world/0,1", 1, 3),
                     Handshake(kGreeter, "world", 2, 3)}) {
    Handshake zero(kGreeter, "world", 0, 3);
    const auto message = met(zero, other);
    EXPECT_TRUE(message.starts_with("MU067")) << message;
    EXPECT_NE(message.find("as rank 1"), std::string::npos) << message;
    EXPECT_EQ(message.find(kGreeter.reveal()), std::string::npos) << message;
  }
}

TEST(Handshake, ASecretOnOneSideOnlyIsRefusedOnBoth) {
  Handshake with(kGreeter, "world", 0, 2), without({}, "world", 1, 2);
  EXPECT_TRUE(testing::thrown([&] { with.take_challenge(1, without.challenge()); }).starts_with("MU067"));
  EXPECT_TRUE(testing::thrown([&] { without.take_challenge(0, with.challenge()); }).starts_with("MU067"));
}

TEST(Handshake, AnAnswerServesOnceAndOneWay) {
  Handshake zero(kGreeter, "world", 0, 2), one(kGreeter, "world", 1, 2), again(kGreeter, "world", 0, 2);
  EXPECT_EQ(met(zero, one), "no error");
  const auto heard = one.response(0);
  again.take_challenge(1, one.challenge());
  EXPECT_TRUE(testing::thrown([&] { again.check_response(1, heard); }).starts_with("MU067"))
      << "an old answer was taken";
  EXPECT_TRUE(testing::thrown([&] { zero.check_response(1, zero.response(1)); }).starts_with("MU067"))
      << "its own answer was taken";
  EXPECT_TRUE(testing::thrown([&] { zero.check_response(1, Frame{}); }).starts_with("MU067"));
}

}  // namespace
}  // namespace muster::comm
