#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/sharded/unit_values.h"

namespace muster::parallel {
namespace {

constexpr std::array kEvents{UnitEvent::prefetch, UnitEvent::access, UnitEvent::reshard, UnitEvent::update};

/// What really happens to a unit's memory when its moves are made.
struct LivedUnit {
  bool stays_unsharded;
  UnitState state = stays_unsharded ? UnitState::unsharded : UnitState::sharded;
  bool memory = stays_unsharded, in_flight = false, current = true;  // whether the memory shows the parts' values
  std::vector<int>* gathers = nullptr;
  int name = 0;

  void handle(UnitEvent event) {
    if (event == UnitEvent::update) current = false;
    const auto move = transition(stays_unsharded, state, event);
    if (move.wait_first) arrive();
    if (move.detach) {
      ASSERT_TRUE(in_flight);
      ASSERT_FALSE(stays_unsharded) << "its memory would be written later";
      in_flight = memory = false;
    }
    if (move.free) {
      ASSERT_FALSE(in_flight);
      ASSERT_FALSE(stays_unsharded);
      memory = false;
    }
    if (move.start) {
      ASSERT_FALSE(in_flight) << "two gathers into one memory";
      ASSERT_TRUE(stays_unsharded || !memory);
      in_flight = memory = true;
      gathers->push_back(name);
    }
    if (move.wait) arrive();
    state = move.next;
    check(event);
  }
  void arrive() {
    ASSERT_TRUE(in_flight);
    in_flight = false;
    current = true;
  }
  void check(UnitEvent event) const {
    EXPECT_EQ(state == UnitState::unsharding, in_flight);
    EXPECT_EQ(memory, stays_unsharded || state != UnitState::sharded);
    if (event == UnitEvent::access) {
      EXPECT_EQ(state, UnitState::unsharded);
      EXPECT_TRUE(current) << "an operator sees old values";
    }
  }
};

/// Every sequence of six events on two units that share one queue of gathers.
TEST(UnitLife, EveryInterleavingOfTwoUnitsShowsPresentValues) {
  constexpr int kLength = 6, kChoices = 2 * static_cast<int>(kEvents.size());
  int walks = 1;
  for (int i = 0; i < kLength; ++i) walks *= kChoices;
  for (const bool stays_unsharded : {false, true})
    for (int walk = 0; walk < walks; ++walk) {
      std::vector<int> gathers;
      std::array<LivedUnit, 2> units{LivedUnit{stays_unsharded}, LivedUnit{stays_unsharded}};
      for (int u = 0; u < 2; ++u) units[u].gathers = &gathers, units[u].name = u;
      for (int i = 0, rest = walk; i < kLength; ++i, rest /= kChoices) {
        const int choice = rest % kChoices;
        units[choice % 2].handle(kEvents[choice / 2]);
        if (::testing::Test::HasFailure())
          FAIL() << "walk " << walk << ", stays unsharded " << stays_unsharded << ", event " << i;
      }
    }
}

TEST(UnitLife, PrefetchAndAccessGatherOnce) {
  EXPECT_EQ(transition(false, UnitState::sharded, UnitEvent::access),
            (UnitTransition{.start = true, .wait = true, .next = UnitState::unsharded}));
  EXPECT_EQ(transition(false, UnitState::unsharding, UnitEvent::prefetch),
            (UnitTransition{.next = UnitState::unsharding}));
  EXPECT_EQ(transition(true, UnitState::unsharded, UnitEvent::reshard), (UnitTransition{.next = UnitState::unsharded}));
  EXPECT_EQ(transition(true, UnitState::unsharded, UnitEvent::update),
            (UnitTransition{.start = true, .next = UnitState::unsharding}));
}

}  // namespace
}  // namespace muster::parallel
