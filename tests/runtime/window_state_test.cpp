#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "runtime/accumulation.h"

namespace muster::runtime {
namespace {

constexpr WindowState kWindowStates[] = {WindowState::closed,         WindowState::open,
                                         WindowState::open_uncounted, WindowState::last_uncounted,
                                         WindowState::left_uncounted, WindowState::left};

TEST(WindowState, AMicroBatchBeginsOnlyWhenTheOneBeforeIsCounted) {
  using enum WindowState;
  using enum WindowEvent;
  for (const auto state : kWindowStates)
    for (const auto& [event, next] : {std::pair(begin_middle, open_uncounted), std::pair(begin_last, last_uncounted),
                                      std::pair(begin_leave, left_uncounted)})
      EXPECT_EQ(transition(state, event), all_counted(state) ? std::optional(next) : std::nullopt);
}

TEST(WindowState, CountingKeepsThePlaceInTheWindow) {
  using enum WindowState;
  using enum WindowEvent;
  for (const auto state : kWindowStates) {
    const auto next = transition(state, count);
    ASSERT_TRUE(next);
    EXPECT_TRUE(all_counted(*next));
    EXPECT_EQ(ends_window(*next), ends_window(state));
    EXPECT_EQ(ends_here_only(*next), ends_here_only(state));
    EXPECT_EQ(transition(*next, count), next);  // counting twice changes nothing
  }
}

TEST(WindowState, EveryStateCanBeGivenUpOrReplaced) {
  using enum WindowState;
  using enum WindowEvent;
  for (const auto state : kWindowStates) {
    EXPECT_EQ(transition(state, reset), closed);
    EXPECT_EQ(transition(state, resume), open);
  }
}

TEST(WindowState, AMicroBatchMayEndTheWindowUntilItIsCounted) {
  using enum WindowState;
  using enum WindowEvent;
  EXPECT_EQ(transition(open_uncounted, end), last_uncounted);
  for (const auto state : {open, left_uncounted, left}) EXPECT_EQ(transition(state, end), std::nullopt);
  for (const auto state : {closed, last_uncounted}) EXPECT_EQ(transition(state, end), state);
}

TEST(WindowState, AWindowEndsOnceItsLastMicroBatchIsCounted) {
  using enum WindowState;
  using enum WindowEvent;
  auto state = closed;
  for (const auto event : {begin_middle, count, begin_middle, count}) {
    state = transition(state, event).value();
    EXPECT_FALSE(ends_window(state));
  }
  for (const auto event : {begin_last, count}) {
    state = transition(state, event).value();
    EXPECT_TRUE(ends_window(state));
  }
  EXPECT_EQ(state, closed);
}

TEST(WindowPosition, EndsAtMultiplesAndWithTheLoader) {
  WindowPosition position;
  EXPECT_TRUE(position.ends() && position.begins());
  const auto begin = [&](bool last) {
    position.count();
    const bool full = position.begin(/*num_steps=*/2, last, /*others_go_on=*/false);
    EXPECT_EQ(position.ends(), full || last);
  };
  for (const bool last : {false, false, true, false, false}) begin(last);  // the loader begins a window of its own
  EXPECT_EQ(position.micro_batches(), 2);
}

TEST(WindowPosition, BeginsUntilTheFirstBackward) {
  WindowPosition position;
  position.begin(2, false, false);
  EXPECT_TRUE(position.begins());
  position.note_backward();
  EXPECT_TRUE(position.went_backward() && !position.begins());
  position.count();
  position.begin(2, false, false);
  EXPECT_FALSE(position.went_backward() || position.begins());
  position.reset();
  EXPECT_TRUE(position.closed());
}

}  // namespace
}  // namespace muster::runtime
