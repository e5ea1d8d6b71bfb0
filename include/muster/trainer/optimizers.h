#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "muster/schedule/scheduler.h"
#include "muster/trainer/options.h"

namespace muster {

namespace trainer {

template <class T>
concept OptimizerObject = std::derived_from<std::remove_cvref_t<T>, torch::optim::Optimizer>;
template <class T>
concept SchedulerObject = std::derived_from<std::remove_cvref_t<T>, LRScheduler> ||
                          std::derived_from<std::remove_cvref_t<T>, torch::optim::LRScheduler> ||
                          std::derived_from<std::remove_cvref_t<T>, torch::optim::ReduceLROnPlateauScheduler>;

}  // namespace trainer

/// A scheduler of Muster or LibTorch, by value or shared.
class AnyLRScheduler {
 public:
  using Held = std::variant<std::monostate, std::shared_ptr<LRScheduler>, std::shared_ptr<torch::optim::LRScheduler>,
                            std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler>>;
  AnyLRScheduler() = default;
  template <trainer::SchedulerObject S>
    requires(!std::is_lvalue_reference_v<S>)
  AnyLRScheduler(S&& scheduler)  // NOLINT(google-explicit-constructor)
      : held_(std::make_shared<std::remove_cvref_t<S>>(std::forward<S>(scheduler))) {}
  template <trainer::SchedulerObject S>
  AnyLRScheduler(std::shared_ptr<S> scheduler) : held_(std::move(scheduler)) {}  // NOLINT(google-explicit-constructor)
  const Held& held() const noexcept { return held_; }

 private:
  Held held_;
};

/// When a scheduler steps.
struct LRSchedulerConfig {
  int64_t frequency = 1;  ///< interval, in epochs or in updates of its optimizer
  ScheduleInterval interval = "epoch";
  std::string monitor = {};  ///< the metric that ReduceLROnPlateau watches
  std::string name = {};     ///< its name in LearningRateMonitor; empty: "lr-" and the optimizer's type
  AnyLRScheduler scheduler = {};
  bool strict = true;  ///< a missing metric is an error, not a warning
};

/// The result of configure_optimizers(): optimizers, each by value or shared; after an optimizer its schedulers, bare
/// or in an LRSchedulerConfig; or another Optimizers.
///   return torch::optim::SGD(parameters(), 0.1);
///   return {adam, muster::StepLR(*adam, {.step_size = 10})};
class Optimizers {
 public:
  struct Entry {
    std::shared_ptr<torch::optim::Optimizer> optimizer;
    std::vector<LRSchedulerConfig> schedulers = {};
  };

  Optimizers() = default;  ///< no optimizers: nothing is updated
  /// Throws: UsageError (MU443) for a scheduler before the first optimizer, or for a null optimizer.
  template <class... T>
    requires(sizeof...(T) > 0 && !(std::same_as<std::remove_cvref_t<T>, Optimizers> && ...))
  Optimizers(T&&... parts) {  // NOLINT(google-explicit-constructor)
    (add(std::forward<T>(parts)), ...);
  }
  const std::vector<Entry>& entries() const noexcept { return entries_; }

 private:
  template <class T>
  void add(T&& part) {
    using V = std::remove_cvref_t<T>;
    if constexpr (trainer::OptimizerObject<V>) {
      static_assert(!std::is_lvalue_reference_v<T>,
                    "configure_optimizers returns its optimizers by value (std::move) or as std::shared_ptr");
      add_optimizer(std::make_shared<V>(std::forward<T>(part)));
    } else if constexpr (std::convertible_to<T, std::shared_ptr<torch::optim::Optimizer>>) {
      add_optimizer(std::forward<T>(part));
    } else if constexpr (std::same_as<V, Optimizers>) {
      for (const auto& entry : part.entries_) entries_.push_back(entry);
    } else if constexpr (std::same_as<V, LRSchedulerConfig>) {
      add_scheduler(std::forward<T>(part));
    } else {
      static_assert(std::constructible_from<AnyLRScheduler, T>,
                    "configure_optimizers returns optimizers, std::shared_ptrs of them, and after each of them its "
                    "schedulers (by value or shared) or LRSchedulerConfigs");
      if constexpr (std::constructible_from<AnyLRScheduler, T>) add_scheduler({.scheduler = std::forward<T>(part)});
    }
  }
  void add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  void add_scheduler(LRSchedulerConfig config);

  std::vector<Entry> entries_;
};

}  // namespace muster
