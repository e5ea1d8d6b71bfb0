// Which hooks may log, and at which level by default: Lightning's table.
#include <set>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/comm/communicator.h"
#include "muster/testing/thrown.h"
#include "trainer/log_book.h"

namespace muster::trainer::log_rights {
namespace {

using enum Hook;

const std::set<Hook> kSteps = {training_step,
                               on_train_batch_start,
                               on_train_batch_end,
                               on_before_backward,
                               backward,
                               on_after_backward,
                               optimizer_step,
                               optimizer_zero_grad,
                               on_before_optimizer_step,
                               on_before_zero_grad,
                               configure_gradient_clipping};
const std::set<Hook> kEvaluations = {validation_step, on_validation_batch_start, on_validation_batch_end,
                                     test_step,       on_test_batch_start,       on_test_batch_end};
const std::set<Hook> kEpochs = {on_train_start,      on_train_epoch_start,      on_train_epoch_end,
                                on_validation_start, on_validation_epoch_start, on_validation_epoch_end,
                                on_test_start,       on_test_epoch_start,       on_test_epoch_end};

struct Logged {
  bool at_once = false, by_epoch = false;
};

Logged logged(Hook hook, const LogOptions& how) {
  LatestMetrics latest;
  LogBook book(latest);
  book.log({.hook = hook}, "x", 1.0, how, {});
  const bool at_once = latest.get().contains("x") || latest.get().contains("x_step");
  book.close({});
  return {at_once, !book.results(1).at(0).empty()};
}

TEST(LogRights, AreThoseOfTheTable) {  // MU441
  for (const auto& [hook, name, level] : kHooks) {
    const auto refused = [&](const LogOptions& how) {
      return testing::thrown_id([&, one = hook] { logged(one, how); }) == "MU441";
    };
    const bool steps = kSteps.contains(hook), evaluates = kEvaluations.contains(hook), epochs = kEpochs.contains(hook);
    if (!steps && !evaluates && !epochs) {
      EXPECT_TRUE(refused({})) << name;
      continue;
    }
    const auto usual = logged(hook, {});
    EXPECT_EQ(usual.at_once, steps) << name;
    EXPECT_EQ(usual.by_epoch, !steps) << name;
    EXPECT_EQ(refused({.on_step = true}), epochs) << name;
    EXPECT_TRUE(refused({.on_epoch = false, .on_step = false})) << name;
    if (epochs) continue;
    const auto both = logged(hook, {.on_epoch = true, .on_step = true});
    EXPECT_TRUE(both.at_once && both.by_epoch) << name;
  }
}

}  // namespace
}  // namespace muster::trainer::log_rights
