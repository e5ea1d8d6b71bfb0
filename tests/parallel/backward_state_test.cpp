#include "parallel/backward_watch.h"

#include <array>
#include <optional>

#include <gtest/gtest.h>

namespace muster::parallel {
namespace {

constexpr std::array kEvents{BackwardEvent::announce,    BackwardEvent::reach,         BackwardEvent::inner_call_ended,
                             BackwardEvent::call_ended,  BackwardEvent::end_announced, BackwardEvent::lose,
                             BackwardEvent::start_alone, BackwardEvent::end_alone};

/// A model that does what it is told, and what the program has a right to expect of it.
struct LivedModel {
  BackwardState state = BackwardState::idle;
  std::optional<BackwardState> running;  // what was begun, and was neither ended nor discarded
  int begun = 0, ended = 0, discarded = 0;

  void handle(BackwardEvent event) {
    const auto before = running;
    const auto move = transition(state, event);
    if (move.discard) {
      ASSERT_TRUE(running);
      running.reset();
      ++discarded;
    }
    if (move.begin) {
      ASSERT_FALSE(running) << "two at once";
      running = move.next;
      ++begun;
    }
    if (move.end) {
      ASSERT_TRUE(running);
      ASSERT_EQ(*running, state);
      running.reset();
      ++ended;
    }
    ASSERT_TRUE(!move.report || move.end);
    state = move.next;
    ASSERT_EQ(state, running.value_or(BackwardState::idle));
    ASSERT_EQ(begun, ended + discarded + (running ? 1 : 0));
    check(event, before, move);
  }

  /// What each event means to the program, said without the table.
  void check(BackwardEvent event, std::optional<BackwardState> before, const BackwardTransition& move) const {
    switch (event) {
      case BackwardEvent::announce: EXPECT_TRUE(move.begin && state == BackwardState::announced); break;
      case BackwardEvent::start_alone: EXPECT_TRUE(move.begin && state == BackwardState::alone); break;
      case BackwardEvent::reach:  // belongs to a backward from now on, and to the announced one if there is one
        EXPECT_EQ(state, before == BackwardState::announced ? *before : BackwardState::unannounced);
        break;
      case BackwardEvent::lose: EXPECT_TRUE(!running && move.discard == before.has_value()); break;
      case BackwardEvent::inner_call_ended:
      case BackwardEvent::call_ended:
        EXPECT_EQ(move.end, before == BackwardState::unannounced) << "the runtime says when its own has ended";
        EXPECT_EQ(move.report, move.end && event == BackwardEvent::call_ended);
        break;
      case BackwardEvent::end_announced: EXPECT_EQ(move.end && move.report, before == BackwardState::announced); break;
      case BackwardEvent::end_alone: EXPECT_EQ(move.end && move.report, before == BackwardState::alone); break;
    }
  }
};

TEST(BackwardState, EverySequenceOfEventsEndsOrDiscardsWhatBegan) {
  constexpr int kLength = 6, kChoices = static_cast<int>(kEvents.size());
  int walks = 1;
  for (int i = 0; i < kLength; ++i) walks *= kChoices;
  for (int walk = 0; walk < walks; ++walk) {
    LivedModel model;
    for (int i = 0, rest = walk; i < kLength; ++i, rest /= kChoices) {
      model.handle(kEvents[static_cast<size_t>(rest % kChoices)]);
      if (::testing::Test::HasFailure()) FAIL() << "walk " << walk << ", event " << i;
    }
  }
}

TEST(BackwardState, AnEndInsideAnotherCallReportsNothing) {
  EXPECT_EQ(transition(BackwardState::unannounced, BackwardEvent::inner_call_ended), (BackwardTransition{.end = true}));
  EXPECT_EQ(transition(BackwardState::unannounced, BackwardEvent::call_ended),
            (BackwardTransition{.end = true, .report = true}));
  EXPECT_EQ(transition(BackwardState::announced, BackwardEvent::announce),
            (BackwardTransition{.discard = true, .begin = true, .next = BackwardState::announced}));
}

}  // namespace
}  // namespace muster::parallel
