#include "parallel/unit_life.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace muster::parallel {
namespace {

constexpr std::array kEvents{UnitEvent::hint, UnitEvent::touch, UnitEvent::release, UnitEvent::update};

/// What really happens to a unit's memory when its moves are made.
struct LivedUnit {
  bool resident;
  UnitState state = resident ? UnitState::whole : UnitState::sharded;
  bool memory = resident, under_way = false, current = true;  // whether the memory shows the parts' values
  std::vector<int>* gathers = nullptr;
  int name = 0;

  void meet(UnitEvent event) {
    if (event == UnitEvent::update) current = false;
    const auto move = next_move(resident, state, event);
    if (move.finish) arrive();
    if (move.forget) {
      ASSERT_TRUE(under_way);
      ASSERT_FALSE(resident) << "its memory would be written later";
      under_way = memory = false;
    }
    if (move.drop) {
      ASSERT_FALSE(under_way);
      ASSERT_FALSE(resident);
      memory = false;
    }
    if (move.start) {
      ASSERT_FALSE(under_way) << "two gathers into one memory";
      ASSERT_TRUE(resident || !memory);
      under_way = memory = true;
      gathers->push_back(name);
    }
    if (move.use) arrive();
    state = move.next;
    check(event);
  }
  void arrive() {
    ASSERT_TRUE(under_way);
    under_way = false;
    current = true;
  }
  void check(UnitEvent event) const {
    EXPECT_EQ(state == UnitState::gathering, under_way);
    EXPECT_EQ(memory, resident || state != UnitState::sharded);
    if (event == UnitEvent::touch) {
      EXPECT_EQ(state, UnitState::whole);
      EXPECT_TRUE(current) << "an operator sees old values";
    }
  }
};

/// Every sequence of six events on two units that share one queue of gathers.
TEST(UnitLife, EveryInterleavingOfTwoUnitsShowsPresentValues) {
  constexpr int kLength = 6, kChoices = 2 * static_cast<int>(kEvents.size());
  int walks = 1;
  for (int i = 0; i < kLength; ++i) walks *= kChoices;
  for (const bool resident : {false, true})
    for (int walk = 0; walk < walks; ++walk) {
      std::vector<int> gathers;
      std::array<LivedUnit, 2> units{LivedUnit{resident}, LivedUnit{resident}};
      for (int u = 0; u < 2; ++u) units[u].gathers = &gathers, units[u].name = u;
      for (int i = 0, rest = walk; i < kLength; ++i, rest /= kChoices) {
        const int choice = rest % kChoices;
        units[choice % 2].meet(kEvents[choice / 2]);
        if (::testing::Test::HasFailure()) FAIL() << "walk " << walk << ", resident " << resident << ", event " << i;
      }
    }
}

TEST(UnitLife, HintsAndTouchesGatherOnce) {
  EXPECT_EQ(next_move(false, UnitState::sharded, UnitEvent::touch),
            (UnitMove{.start = true, .use = true, .next = UnitState::whole}));
  EXPECT_EQ(next_move(false, UnitState::gathering, UnitEvent::hint), (UnitMove{.next = UnitState::gathering}));
  EXPECT_EQ(next_move(true, UnitState::whole, UnitEvent::release), (UnitMove{.next = UnitState::whole}));
  EXPECT_EQ(next_move(true, UnitState::whole, UnitEvent::update),
            (UnitMove{.start = true, .next = UnitState::gathering}));
}

}  // namespace
}  // namespace muster::parallel
