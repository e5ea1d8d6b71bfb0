#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "muster/trainer/batch.h"
#include "muster/trainer/options.h"
#include "muster/tree/state.h"

namespace muster {

class ModuleOptimizer;
class Trainer;
class TrainerModule;

/// Base class of callbacks, which follow a run of any module. A callback's hook is called before the module's hook of
/// that name, in the order of the callbacks.
/// Thread safety: all hooks are called on the thread that called the Trainer. Every rank calls them.
class Callback {
 public:
  virtual ~Callback() = default;

  /// The position among other callbacks. Callbacks with `last` watch metrics or write checkpoints: at the end of a
  /// training batch, a training epoch and a validation they are called after the module.
  enum class Place : std::uint8_t { first, usual, last };
  virtual Place place() const { return Place::usual; }
  /// The name under which the state is saved; by default the name of the class. Callbacks with a state must have
  /// different keys (MU452).
  virtual std::string state_key() const;
  /// The state that checkpoints save; empty: none.
  virtual State state_dict() const { return {}; }
  virtual void load_state_dict(const State&) {}

  virtual void setup(Trainer&, TrainerModule&, Stage) {}
  virtual void teardown(Trainer&, TrainerModule&, Stage) {}
  virtual void on_fit_start(Trainer&, TrainerModule&) {}
  virtual void on_fit_end(Trainer&, TrainerModule&) {}
  virtual void on_sanity_check_start(Trainer&, TrainerModule&) {}
  virtual void on_sanity_check_end(Trainer&, TrainerModule&) {}
  virtual void on_train_start(Trainer&, TrainerModule&) {}
  virtual void on_train_end(Trainer&, TrainerModule&) {}
  virtual void on_train_epoch_start(Trainer&, TrainerModule&) {}
  virtual void on_train_epoch_end(Trainer&, TrainerModule&) {}
  virtual void on_train_batch_start(Trainer&, TrainerModule&, const BatchView&, BatchPlace) {}
  virtual void on_train_batch_end(Trainer&, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace) {}
  virtual void on_validation_start(Trainer&, TrainerModule&) {}
  virtual void on_validation_end(Trainer&, TrainerModule&) {}
  virtual void on_validation_epoch_start(Trainer&, TrainerModule&) {}
  virtual void on_validation_epoch_end(Trainer&, TrainerModule&) {}
  virtual void on_validation_batch_start(Trainer&, TrainerModule&, const BatchView&, BatchPlace) {}
  virtual void on_validation_batch_end(Trainer&, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace) {}
  virtual void on_test_start(Trainer&, TrainerModule&) {}
  virtual void on_test_end(Trainer&, TrainerModule&) {}
  virtual void on_test_epoch_start(Trainer&, TrainerModule&) {}
  virtual void on_test_epoch_end(Trainer&, TrainerModule&) {}
  virtual void on_test_batch_start(Trainer&, TrainerModule&, const BatchView&, BatchPlace) {}
  virtual void on_test_batch_end(Trainer&, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace) {}
  virtual void on_predict_start(Trainer&, TrainerModule&) {}
  virtual void on_predict_end(Trainer&, TrainerModule&) {}
  virtual void on_predict_epoch_start(Trainer&, TrainerModule&) {}
  virtual void on_predict_epoch_end(Trainer&, TrainerModule&) {}
  virtual void on_predict_batch_start(Trainer&, TrainerModule&, const BatchView&, BatchPlace) {}
  virtual void on_predict_batch_end(Trainer&, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace) {}
  virtual void on_before_zero_grad(Trainer&, TrainerModule&, ModuleOptimizer&) {}
  virtual void on_before_backward(Trainer&, TrainerModule&, const at::Tensor& /*loss*/) {}
  virtual void on_after_backward(Trainer&, TrainerModule&) {}
  virtual void on_before_optimizer_step(Trainer&, TrainerModule&, ModuleOptimizer&) {}
  /// Called if an exception ends a run, before teardown().
  virtual void on_exception(Trainer&, TrainerModule&, const std::exception_ptr&) {}
  virtual void on_save_checkpoint(Trainer&, TrainerModule&, State& /*checkpoint*/) {}
  virtual void on_load_checkpoint(Trainer&, TrainerModule&, State& /*checkpoint*/) {}
};

}  // namespace muster
