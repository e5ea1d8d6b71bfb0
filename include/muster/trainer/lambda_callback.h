#pragma once

#include <exception>
#include <functional>
#include <utility>

#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace muster {

/// Functions to call in hooks, with the parameters of the hook of that name in Callback. Empty functions are not
/// called.
struct LambdaHooks {
  using Hook = std::function<void(Trainer&, TrainerModule&)>;
  using BatchStart = std::function<void(Trainer&, TrainerModule&, const BatchView&, BatchPlace)>;
  using BatchEnd = std::function<void(Trainer&, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace)>;
  using OfStage = std::function<void(Trainer&, TrainerModule&, Stage)>;
  using OfOptimizer = std::function<void(Trainer&, TrainerModule&, ModuleOptimizer&)>;
  using OfLoss = std::function<void(Trainer&, TrainerModule&, const at::Tensor&)>;
  using OfError = std::function<void(Trainer&, TrainerModule&, const std::exception_ptr&)>;
  using OfState = std::function<void(Trainer&, TrainerModule&, State&)>;

  Hook on_after_backward = {};
  OfLoss on_before_backward = {};
  OfOptimizer on_before_optimizer_step = {};
  OfOptimizer on_before_zero_grad = {};
  OfError on_exception = {};
  Hook on_fit_end = {};
  Hook on_fit_start = {};
  OfState on_load_checkpoint = {};
  BatchEnd on_predict_batch_end = {};
  BatchStart on_predict_batch_start = {};
  Hook on_predict_end = {};
  Hook on_predict_epoch_end = {};
  Hook on_predict_epoch_start = {};
  Hook on_predict_start = {};
  Hook on_sanity_check_end = {};
  Hook on_sanity_check_start = {};
  OfState on_save_checkpoint = {};
  BatchEnd on_test_batch_end = {};
  BatchStart on_test_batch_start = {};
  Hook on_test_end = {};
  Hook on_test_epoch_end = {};
  Hook on_test_epoch_start = {};
  Hook on_test_start = {};
  BatchEnd on_train_batch_end = {};
  BatchStart on_train_batch_start = {};
  Hook on_train_end = {};
  Hook on_train_epoch_end = {};
  Hook on_train_epoch_start = {};
  Hook on_train_start = {};
  BatchEnd on_validation_batch_end = {};
  BatchStart on_validation_batch_start = {};
  Hook on_validation_end = {};
  Hook on_validation_epoch_end = {};
  Hook on_validation_epoch_start = {};
  Hook on_validation_start = {};
  OfStage setup = {};
  OfStage teardown = {};
};

/// A callback made of functions: LambdaCallback({.on_train_epoch_end = [](Trainer& trainer, TrainerModule&) { ... }}).
/// It has no state. Thread safety: as Callback.
class LambdaCallback : public Callback {
 public:
  explicit LambdaCallback(LambdaHooks hooks) : hooks_(std::move(hooks)) {}

  void setup(Trainer& t, TrainerModule& m, Stage stage) override;
  void teardown(Trainer& t, TrainerModule& m, Stage stage) override;
  void on_fit_start(Trainer& t, TrainerModule& m) override;
  void on_fit_end(Trainer& t, TrainerModule& m) override;
  void on_sanity_check_start(Trainer& t, TrainerModule& m) override;
  void on_sanity_check_end(Trainer& t, TrainerModule& m) override;
  void on_train_start(Trainer& t, TrainerModule& m) override;
  void on_train_end(Trainer& t, TrainerModule& m) override;
  void on_train_epoch_start(Trainer& t, TrainerModule& m) override;
  void on_train_epoch_end(Trainer& t, TrainerModule& m) override;
  void on_train_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) override;
  void on_train_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output, const BatchView& batch,
                          BatchPlace place) override;
  void on_validation_start(Trainer& t, TrainerModule& m) override;
  void on_validation_end(Trainer& t, TrainerModule& m) override;
  void on_validation_epoch_start(Trainer& t, TrainerModule& m) override;
  void on_validation_epoch_end(Trainer& t, TrainerModule& m) override;
  void on_validation_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) override;
  void on_validation_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output, const BatchView& batch,
                               BatchPlace place) override;
  void on_test_start(Trainer& t, TrainerModule& m) override;
  void on_test_end(Trainer& t, TrainerModule& m) override;
  void on_test_epoch_start(Trainer& t, TrainerModule& m) override;
  void on_test_epoch_end(Trainer& t, TrainerModule& m) override;
  void on_test_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) override;
  void on_test_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output, const BatchView& batch,
                         BatchPlace place) override;
  void on_predict_start(Trainer& t, TrainerModule& m) override;
  void on_predict_end(Trainer& t, TrainerModule& m) override;
  void on_predict_epoch_start(Trainer& t, TrainerModule& m) override;
  void on_predict_epoch_end(Trainer& t, TrainerModule& m) override;
  void on_predict_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) override;
  void on_predict_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output, const BatchView& batch,
                            BatchPlace place) override;
  void on_before_zero_grad(Trainer& t, TrainerModule& m, ModuleOptimizer& optimizer) override;
  void on_before_backward(Trainer& t, TrainerModule& m, const at::Tensor& loss) override;
  void on_after_backward(Trainer& t, TrainerModule& m) override;
  void on_before_optimizer_step(Trainer& t, TrainerModule& m, ModuleOptimizer& optimizer) override;
  void on_exception(Trainer& t, TrainerModule& m, const std::exception_ptr& error) override;
  void on_save_checkpoint(Trainer& t, TrainerModule& m, State& checkpoint) override;
  void on_load_checkpoint(Trainer& t, TrainerModule& m, State& checkpoint) override;

 private:
  LambdaHooks hooks_;
};

}  // namespace muster
