#include <array>
#include <optional>

#include <gtest/gtest.h>

#include "parallel/backward_watch.h"

namespace muster::parallel {
namespace {

constexpr std::array kEvents{BackwardEvent::announce,   BackwardEvent::reach,         BackwardEvent::inner_call_ended,
                             BackwardEvent::call_ended, BackwardEvent::end_announced, BackwardEvent::fail,
                             BackwardEvent::lose_calls, BackwardEvent::discard,       BackwardEvent::start_alone,
                             BackwardEvent::end_alone};

/// A model that does what it is told, and what the program has a right to expect of it.
struct LivedModel {
  BackwardState state = BackwardState::idle;
  std::optional<BackwardState> running;  // what was begun, and was neither ended nor discarded
  int begun = 0, ended = 0, discarded = 0;

  void handle(BackwardEvent event) {
    const auto before = state;
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
    if (state == BackwardState::failed) ASSERT_TRUE(running);
    else if (state == BackwardState::idle || state == BackwardState::finished) ASSERT_FALSE(running);
    else ASSERT_EQ(state, running);
    ASSERT_EQ(begun, ended + discarded + (running ? 1 : 0));
    check(event, before, move);
  }

  /// What each event means to the program, said without the table.
  void check(BackwardEvent event, BackwardState before, const BackwardTransition& move) const {
    using enum BackwardState;
    const bool acts = move.discard || move.begin || move.end;
    switch (event) {
      case BackwardEvent::announce: EXPECT_TRUE(move.begin && state == announced); break;
      case BackwardEvent::start_alone: EXPECT_TRUE(move.begin && state == alone); break;
      case BackwardEvent::reach:  // belongs to the backward that runs, or begins one
        EXPECT_EQ(move.begin, before != announced && before != unannounced);
        EXPECT_EQ(state, before == announced ? announced : unannounced);
        break;
      case BackwardEvent::fail:
        EXPECT_TRUE(!acts && (state == alone || (state == failed) == running.has_value()));
        break;
      case BackwardEvent::lose_calls: EXPECT_EQ(move.discard, before == unannounced); break;
      case BackwardEvent::discard: EXPECT_TRUE(!running && state == idle); break;
      case BackwardEvent::inner_call_ended:
        EXPECT_EQ(move.end, before == unannounced) << "the runtime's may go on";
        EXPECT_FALSE(move.report);
        break;
      case BackwardEvent::call_ended: EXPECT_EQ(move.report, before == unannounced || before == announced); break;
      case BackwardEvent::end_announced: EXPECT_EQ(move.report, before == announced); break;
      case BackwardEvent::end_alone: EXPECT_EQ(move.report, before == alone); break;
    }
  }
};

TEST(BackwardState, EverySequenceOfEventsEndsOrDiscardsWhatBegan) {
  constexpr int kLength = 5, kChoices = static_cast<int>(kEvents.size());
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
