#include <gtest/gtest.h>

#include "runtime/accumulation.h"

namespace muster::runtime {
namespace {

constexpr MicroBatch kFull{.full = 4, .local = 4, .total = 4};
constexpr MicroBatch kShort{.full = 4, .last = true, .local = 2, .total = 2};

/// The factor for a loss of the micro-batch on the only rank.
double factor_of(WindowWeights& weights, const MicroBatch& batch) {
  weights.begin(batch);
  weights.add_up(batch, /*num_steps=*/2);
  weights.choose_full(batch, /*num_steps=*/2, {});
  return weights.factor(/*ranks=*/1);
}

TEST(WindowWeights, AFullWindowNeedsNoCorrection) {
  WindowWeights weights;
  weights.begin_window();
  EXPECT_EQ(factor_of(weights, kFull), 0.5);
  EXPECT_EQ(factor_of(weights, kFull), 0.5);
  EXPECT_EQ(weights.correct({}), 1);
}

TEST(WindowWeights, AShortWindowIsCorrectedOnce) {
  WindowWeights weights;
  weights.begin_window();
  EXPECT_EQ(factor_of(weights, kFull), 0.5);
  weights.begin(kShort);
  weights.add_up(kShort, 2);
  weights.choose_full(kShort, 2, {});
  const double correction = weights.correct({});
  EXPECT_DOUBLE_EQ(correction, 8.0 / 6);  // for gradients that are there
  EXPECT_DOUBLE_EQ(0.5 * correction + weights.factor(1), 1);
}

TEST(WindowWeights, WithoutALossNothingIsRescaled) {
  WindowWeights weights;
  weights.begin_window();
  weights.begin(kShort);
  weights.add_up(kShort, 2);
  weights.choose_full(kShort, 2, {});
  EXPECT_EQ(weights.correct({}), 1);
}

TEST(WindowWeights, AStateIsLoadedWholeOrNotAtAll) {
  WindowWeights weights;
  weights.begin_window();
  factor_of(weights, kFull);
  auto state = weights.state_dict();
  EXPECT_ANY_THROW(weights.load_state_dict(state));  // says not whether the window is open
  state.set("open", true);
  WindowWeights other;
  other.load_state_dict(state);
  EXPECT_EQ(factor_of(other, kShort), factor_of(weights, kShort));
  EXPECT_EQ(other.correct({}), weights.correct({}));
}

}  // namespace
}  // namespace muster::runtime
