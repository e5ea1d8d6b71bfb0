#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "muster/trainer/callback.h"
#include "muster/trainer/module.h"
#include "trainer/hooks.h"

namespace muster::trainer {

[[noreturn]] void refuse_equal_keys(const Callback& callback);

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
    const Scope scope(*this, hook);
    return std::forward<F>(f)();
  }

  template <class... P, class... A>
  void callbacks(Hook hook, void (Callback::*f)(Trainer&, TrainerModule&, P...), A&&... arguments) {
    const Scope scope(*this, hook);
    for (const auto& callback : callbacks_) ((*callback).*f)(*trainer_, *module_, arguments...);
  }
  /// Calls only the callbacks for which `which` is true.
  template <class Which, class... P, class... A>
  void some_callbacks(Hook hook, Which&& which, void (Callback::*f)(Trainer&, TrainerModule&, P...), A&&... arguments) {
    const Scope scope(*this, hook);
    for (const auto& callback : callbacks_)
      if (which(*callback)) ((*callback).*f)(*trainer_, *module_, arguments...);
  }
  /// Whether the callback watches metrics or saves. Such callbacks run after the module, all others before it.
  static bool is_watcher(const Callback& callback) { return callback.place() == Callback::Place::last; }
  static bool is_no_watcher(const Callback& callback) { return !is_watcher(callback); }
  template <class R, class... P, class... A>
  R module(Hook hook, R (TrainerModule::*f)(P...), A&&... arguments) {
    const Scope scope(*this, hook);
    return (module_->*f)(arguments...);
  }
  /// Calls the callbacks, then the module: the order of nearly all hooks.
  template <class... P, class... Q, class... A>
  void both(Hook hook, void (Callback::*of_callbacks)(Trainer&, TrainerModule&, P...),
            void (TrainerModule::*of_module)(Q...), A&&... arguments) {
    callbacks(hook, of_callbacks, arguments...);
    module(hook, of_module, arguments...);
  }

 private:
  class Scope {
   public:
    Scope(HookCalls& calls, Hook hook) : calls_(calls), before_(std::exchange(calls.current_, hook)) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { calls_.current_ = before_; }

   private:
    HookCalls& calls_;
    Hook before_;
  };

  Trainer* trainer_;
  TrainerModule* module_ = nullptr;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  Hook current_ = Hook::none;
};

}  // namespace muster::trainer
