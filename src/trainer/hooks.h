#pragma once

#include <source_location>

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

/// What log() may do in a hook that belongs to a step of training, to a step of an evaluation, or to no batch; in other
/// hooks nothing is logged.
constexpr LogLevel log_level(Hook hook) {
  using enum Hook;
  const auto is_one_of = [hook](std::initializer_list<Hook> hooks) {
    return std::ranges::find(hooks, hook) != hooks.end();
  };
  if (is_one_of({on_train_batch_start, optimizer_step, training_step, on_before_zero_grad, optimizer_zero_grad,
                 on_before_backward, backward, on_after_backward, on_before_optimizer_step, configure_gradient_clipping,
                 on_train_batch_end}))
    return LogLevel::step;
  if (is_one_of({on_validation_batch_start, validation_step, on_validation_batch_end, on_test_batch_start, test_step,
                 on_test_batch_end}))
    return LogLevel::epoch;
  if (is_one_of({on_train_start, on_train_epoch_start, on_validation_start, on_validation_epoch_start,
                 on_validation_epoch_end, on_test_start, on_test_epoch_start, on_test_epoch_end, on_train_epoch_end}))
    return LogLevel::epoch_only;
  return LogLevel::none;
}

/// The enumerator's name, which the compiler supplies.
template <Hook H>
consteval std::string_view hook_name() {
  if (H == Hook::none) return "no hook";
  const std::string_view function = std::source_location::current().function_name();
  const auto name = function.substr(function.rfind("Hook::") + 6);
  return name.substr(0, name.find_first_of(";]"));
}

struct HookInfo {
  std::string_view name;
  LogLevel log;
};

/// By Hook.
inline constexpr auto kHooks = []<std::size_t... I>(std::index_sequence<I...>) {
  return std::array{HookInfo{hook_name<static_cast<Hook>(I)>(), log_level(static_cast<Hook>(I))}...};
}(std::make_index_sequence<static_cast<std::size_t>(Hook::teardown) + 1>());

constexpr const HookInfo& info(Hook hook) { return kHooks[static_cast<std::size_t>(hook)]; }
static_assert(info(Hook::setup).name == "setup" && info(Hook::teardown).name == "teardown");

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
