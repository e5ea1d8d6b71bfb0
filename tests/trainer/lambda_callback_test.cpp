#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trainer/traced_module.h"

namespace muster {
namespace {

using testing::HookTrace, testing::TracedCallback, testing::TracedModule;

/// Every hook adds its name.
LambdaHooks hooks_that_trace(HookTrace& trace) {
  const auto in = [&trace](const char* name) {
    return [&trace, name](auto&&...) { trace.add(std::string("CB.") + name); };
  };
  return {.on_after_backward = in("on_after_backward"),
          .on_before_backward = in("on_before_backward"),
          .on_before_optimizer_step = in("on_before_optimizer_step"),
          .on_before_zero_grad = in("on_before_zero_grad"),
          .on_exception = in("on_exception"),
          .on_fit_end = in("on_fit_end"),
          .on_fit_start = in("on_fit_start"),
          .on_load_checkpoint = in("on_load_checkpoint"),
          .on_predict_batch_end = in("on_predict_batch_end"),
          .on_predict_batch_start = in("on_predict_batch_start"),
          .on_predict_end = in("on_predict_end"),
          .on_predict_epoch_end = in("on_predict_epoch_end"),
          .on_predict_epoch_start = in("on_predict_epoch_start"),
          .on_predict_start = in("on_predict_start"),
          .on_sanity_check_end = in("on_sanity_check_end"),
          .on_sanity_check_start = in("on_sanity_check_start"),
          .on_save_checkpoint = in("on_save_checkpoint"),
          .on_test_batch_end = in("on_test_batch_end"),
          .on_test_batch_start = in("on_test_batch_start"),
          .on_test_end = in("on_test_end"),
          .on_test_epoch_end = in("on_test_epoch_end"),
          .on_test_epoch_start = in("on_test_epoch_start"),
          .on_test_start = in("on_test_start"),
          .on_train_batch_end = in("on_train_batch_end"),
          .on_train_batch_start = in("on_train_batch_start"),
          .on_train_end = in("on_train_end"),
          .on_train_epoch_end = in("on_train_epoch_end"),
          .on_train_epoch_start = in("on_train_epoch_start"),
          .on_train_start = in("on_train_start"),
          .on_validation_batch_end = in("on_validation_batch_end"),
          .on_validation_batch_start = in("on_validation_batch_start"),
          .on_validation_end = in("on_validation_end"),
          .on_validation_epoch_end = in("on_validation_epoch_end"),
          .on_validation_epoch_start = in("on_validation_epoch_start"),
          .on_validation_start = in("on_validation_start"),
          .setup = in("setup"),
          .teardown = in("teardown")};
}

/// All stages of a module, with the callback alone.
std::vector<std::string> calls_of(const std::function<std::shared_ptr<Callback>(HookTrace&)>& make) {
  HookTrace of_module, trace;
  TracedModule module(of_module);
  Trainer trainer({.callbacks = {make(trace)}, .enable_checkpointing = false, .max_epochs = 1});
  trainer.fit(module);
  trainer.validate(module);
  trainer.test(module);
  trainer.predict(module);
  return trace.calls;
}

TEST(LambdaCallback, EveryHookIsCalledAsThatOfAClass) {
  const auto of_functions =
      calls_of([](HookTrace& trace) { return std::make_shared<LambdaCallback>(hooks_that_trace(trace)); });
  EXPECT_EQ(of_functions, calls_of([](HookTrace& trace) { return std::make_shared<TracedCallback>(trace); }));
  EXPECT_GT(of_functions.size(), 50u);
}

TEST(LambdaCallback, HooksGetWhatThoseOfAClassGet) {
  std::vector<std::string> seen;
  LambdaHooks hooks;
  hooks.setup = [&](Trainer&, TrainerModule&, Stage stage) { seen.push_back(stage == Stage::fit ? "fit" : "other"); };
  hooks.on_train_batch_end = [&](Trainer&, TrainerModule&, const StepOutput& output, const BatchView& batch,
                                 BatchPlace place) {
    if (output.loss.defined() && batch.size() == 1) seen.push_back(std::to_string(place.batch_idx));
  };
  hooks.on_exception = [&](Trainer&, TrainerModule&, const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::runtime_error& thrown) {
      seen.emplace_back(thrown.what());
    }
  };
  hooks.on_train_epoch_end = [](Trainer&, TrainerModule&) { throw std::runtime_error("enough"); };
  HookTrace trace;
  TracedModule module(trace);
  Trainer trainer({.callbacks = {std::make_shared<LambdaCallback>(hooks)}, .enable_checkpointing = false});
  EXPECT_THROW(trainer.fit(module), std::runtime_error);
  EXPECT_EQ(seen, (std::vector<std::string>{"fit", "0", "1", "enough"}));
}

}  // namespace
}  // namespace muster
