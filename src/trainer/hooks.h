#pragma once

#include <c10/util/ScopeExit.h>

#include "muster/trainer/callback.h"
#include "muster/trainer/module.h"

namespace muster::trainer {

/// What log() may do in a hook: the default level, and whether the other level may be chosen.
enum class LogLevel : std::uint8_t { none, step, epoch, epoch_only };

/// Every hook of a module, in the order in which a run first calls it.
enum class Hook : std::uint8_t {
  none,
  configure_callbacks,
  prepare_data,
  setup,
  configure_model,
  on_load_checkpoint,
  configure_optimizers,
  on_fit_start,
  on_sanity_check_start,
  on_sanity_check_end,
  train_dataloader,
  val_dataloader,
  test_dataloader,
  predict_dataloader,
  on_train_start,
  on_train_epoch_start,
  on_batch_transfer,
  on_train_batch_start,
  optimizer_step,
  training_step,
  on_before_zero_grad,
  optimizer_zero_grad,
  on_before_backward,
  backward,
  on_after_backward,
  on_before_optimizer_step,
  configure_gradient_clipping,
  lr_scheduler_step,
  on_train_batch_end,
  on_validation_model_zero_grad,
  on_validation_model_eval,
  on_validation_start,
  on_validation_epoch_start,
  on_validation_batch_start,
  validation_step,
  on_validation_batch_end,
  on_validation_epoch_end,
  on_validation_end,
  on_validation_model_train,
  on_test_model_eval,
  on_test_start,
  on_test_epoch_start,
  on_test_batch_start,
  test_step,
  on_test_batch_end,
  on_test_epoch_end,
  on_test_end,
  on_test_model_train,
  on_predict_model_eval,
  on_predict_start,
  on_predict_epoch_start,
  on_predict_batch_start,
  predict_step,
  on_predict_batch_end,
  on_predict_epoch_end,
  on_predict_end,
  on_predict_model_train,
  on_train_epoch_end,
  on_save_checkpoint,
  on_train_end,
  on_fit_end,
  on_exception,
  teardown,
};

struct HookInfo {
  Hook hook;
  std::string_view name;
  LogLevel log = LogLevel::none;
};

/// One row per hook, in the order of the enumeration.
inline constexpr std::array kHooks = {
    HookInfo{Hook::none, "no hook"},
    HookInfo{Hook::configure_callbacks, "configure_callbacks"},
    HookInfo{Hook::prepare_data, "prepare_data"},
    HookInfo{Hook::setup, "setup"},
    HookInfo{Hook::configure_model, "configure_model"},
    HookInfo{Hook::on_load_checkpoint, "on_load_checkpoint"},
    HookInfo{Hook::configure_optimizers, "configure_optimizers"},
    HookInfo{Hook::on_fit_start, "on_fit_start"},
    HookInfo{Hook::on_sanity_check_start, "on_sanity_check_start"},
    HookInfo{Hook::on_sanity_check_end, "on_sanity_check_end"},
    HookInfo{Hook::train_dataloader, "train_dataloader"},
    HookInfo{Hook::val_dataloader, "val_dataloader"},
    HookInfo{Hook::test_dataloader, "test_dataloader"},
    HookInfo{Hook::predict_dataloader, "predict_dataloader"},
    HookInfo{Hook::on_train_start, "on_train_start", LogLevel::epoch_only},
    HookInfo{Hook::on_train_epoch_start, "on_train_epoch_start", LogLevel::epoch_only},
    HookInfo{Hook::on_batch_transfer, "on_batch_transfer"},
    HookInfo{Hook::on_train_batch_start, "on_train_batch_start", LogLevel::step},
    HookInfo{Hook::optimizer_step, "optimizer_step", LogLevel::step},
    HookInfo{Hook::training_step, "training_step", LogLevel::step},
    HookInfo{Hook::on_before_zero_grad, "on_before_zero_grad", LogLevel::step},
    HookInfo{Hook::optimizer_zero_grad, "optimizer_zero_grad", LogLevel::step},
    HookInfo{Hook::on_before_backward, "on_before_backward", LogLevel::step},
    HookInfo{Hook::backward, "backward", LogLevel::step},
    HookInfo{Hook::on_after_backward, "on_after_backward", LogLevel::step},
    HookInfo{Hook::on_before_optimizer_step, "on_before_optimizer_step", LogLevel::step},
    HookInfo{Hook::configure_gradient_clipping, "configure_gradient_clipping", LogLevel::step},
    HookInfo{Hook::lr_scheduler_step, "lr_scheduler_step"},
    HookInfo{Hook::on_train_batch_end, "on_train_batch_end", LogLevel::step},
    HookInfo{Hook::on_validation_model_zero_grad, "on_validation_model_zero_grad"},
    HookInfo{Hook::on_validation_model_eval, "on_validation_model_eval"},
    HookInfo{Hook::on_validation_start, "on_validation_start", LogLevel::epoch_only},
    HookInfo{Hook::on_validation_epoch_start, "on_validation_epoch_start", LogLevel::epoch_only},
    HookInfo{Hook::on_validation_batch_start, "on_validation_batch_start", LogLevel::epoch},
    HookInfo{Hook::validation_step, "validation_step", LogLevel::epoch},
    HookInfo{Hook::on_validation_batch_end, "on_validation_batch_end", LogLevel::epoch},
    HookInfo{Hook::on_validation_epoch_end, "on_validation_epoch_end", LogLevel::epoch_only},
    HookInfo{Hook::on_validation_end, "on_validation_end"},
    HookInfo{Hook::on_validation_model_train, "on_validation_model_train"},
    HookInfo{Hook::on_test_model_eval, "on_test_model_eval"},
    HookInfo{Hook::on_test_start, "on_test_start", LogLevel::epoch_only},
    HookInfo{Hook::on_test_epoch_start, "on_test_epoch_start", LogLevel::epoch_only},
    HookInfo{Hook::on_test_batch_start, "on_test_batch_start", LogLevel::epoch},
    HookInfo{Hook::test_step, "test_step", LogLevel::epoch},
    HookInfo{Hook::on_test_batch_end, "on_test_batch_end", LogLevel::epoch},
    HookInfo{Hook::on_test_epoch_end, "on_test_epoch_end", LogLevel::epoch_only},
    HookInfo{Hook::on_test_end, "on_test_end"},
    HookInfo{Hook::on_test_model_train, "on_test_model_train"},
    HookInfo{Hook::on_predict_model_eval, "on_predict_model_eval"},
    HookInfo{Hook::on_predict_start, "on_predict_start"},
    HookInfo{Hook::on_predict_epoch_start, "on_predict_epoch_start"},
    HookInfo{Hook::on_predict_batch_start, "on_predict_batch_start"},
    HookInfo{Hook::predict_step, "predict_step"},
    HookInfo{Hook::on_predict_batch_end, "on_predict_batch_end"},
    HookInfo{Hook::on_predict_epoch_end, "on_predict_epoch_end"},
    HookInfo{Hook::on_predict_end, "on_predict_end"},
    HookInfo{Hook::on_predict_model_train, "on_predict_model_train"},
    HookInfo{Hook::on_train_epoch_end, "on_train_epoch_end", LogLevel::epoch_only},
    HookInfo{Hook::on_save_checkpoint, "on_save_checkpoint"},
    HookInfo{Hook::on_train_end, "on_train_end"},
    HookInfo{Hook::on_fit_end, "on_fit_end"},
    HookInfo{Hook::on_exception, "on_exception"},
    HookInfo{Hook::teardown, "teardown"},
};

constexpr const HookInfo& info(Hook hook) { return kHooks[static_cast<std::size_t>(hook)]; }
static_assert([] {
  for (std::size_t i = 0; i < kHooks.size(); ++i)
    if (kHooks[i].hook != static_cast<Hook>(i)) return false;
  return kHooks.size() == static_cast<std::size_t>(Hook::teardown) + 1;
}());

/// Calls hooks and records which one is running, since log() depends on it. No other code calls hooks that take no
/// batch.
class HookCalls {
 public:
  explicit HookCalls(Trainer& trainer) : trainer_(&trainer) {}

  /// The module and callbacks of a run; the callbacks in their final order.
  void begin(TrainerModule* module, std::vector<std::shared_ptr<Callback>> callbacks) {
    module_ = module;
    callbacks_ = std::move(callbacks);
  }
  const std::vector<std::shared_ptr<Callback>>& callbacks() const noexcept { return callbacks_; }
  Hook current() const noexcept { return current_; }
  /// Runs f as a hook of the typed edge and returns its result.
  template <class F>
  decltype(auto) run(Hook hook, F&& f) {
    const auto leave = c10::make_scope_exit([this, before = std::exchange(current_, hook)] { current_ = before; });
    return std::forward<F>(f)();
  }

  template <class... P, class... A>
  void callbacks(Hook hook, void (Callback::*f)(Trainer&, TrainerModule&, P...), A&&... arguments) {
    run(hook, [&] {
      for (const auto& callback : callbacks_) ((*callback).*f)(*trainer_, *module_, arguments...);
    });
  }
  /// Whether the callback watches metrics or saves. Such callbacks run after the module, all others before it.
  static bool is_watcher(const Callback& callback) { return callback.place() == Callback::Place::last; }
  /// Calls only the callbacks that run before the module.
  template <class... P, class... A>
  void callbacks_before(Hook hook, void (Callback::*f)(Trainer&, TrainerModule&, P...), A&&... arguments) {
    run(hook, [&] {
      for (const auto& callback : callbacks_)
        if (!is_watcher(*callback)) ((*callback).*f)(*trainer_, *module_, arguments...);
    });
  }
  template <class R, class... P, class... A>
  R module(Hook hook, R (TrainerModule::*f)(P...), A&&... arguments) {
    return run(hook, [&]() -> R { return (module_->*f)(arguments...); });
  }
  /// Calls the callbacks, then the module: the order of nearly all hooks.
  template <class... P, class... Q, class... A>
  void both(Hook hook, void (Callback::*of_callbacks)(Trainer&, TrainerModule&, P...),
            void (TrainerModule::*of_module)(Q...), A&&... arguments) {
    callbacks(hook, of_callbacks, arguments...);
    module(hook, of_module, arguments...);
  }

 private:
  Trainer* trainer_;
  TrainerModule* module_ = nullptr;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  Hook current_ = Hook::none;
};

}  // namespace muster::trainer
