#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "muster/schedule/options.h"
#include "muster/schedule/scheduler.h"

namespace muster::schedule {

/// A momentum that is scheduled with the rate: `momentum` of SGD and RMSprop, the first beta of Adam and AdamW.
class MomentumSchedule {
 public:
  /// Throws: ConfigError (MU135) if the optimizer has no momentum.
  MomentumSchedule(const OptimizerRates& optimizer, const PerGroup<double>& base, const PerGroup<double>& max);
  MomentumSchedule() = default;
  bool on() const noexcept { return !base_.empty(); }
  double base(size_t group) const { return base_[group]; }
  double max(size_t group) const { return max_[group]; }
  void set(const OptimizerRates& optimizer, size_t group, double momentum) const;
  void save(const OptimizerRates& optimizer, SchedulerState& state) const;
  void load(const OptimizerRates& optimizer, const SchedulerState& state) const;

 private:
  std::vector<double> base_, max_;
};

}  // namespace muster::schedule

namespace muster {

/// Cycles between base_lr and max_lr, and the momentum in the opposite direction (Smith 2015).
class CyclicLR final : public LRScheduler {
 public:
  CyclicLR(OptimizerRates optimizer, CyclicLROptions options);
  SchedulerState state_dict() const override;

 private:
  double next_lr(size_t group, double lr) override;
  void set_others() override;
  void load(const SchedulerState& state) override;
  /// The fraction of the range between base and max at last_epoch().
  double height() const;

  CyclicLROptions options_;
  std::vector<double> max_lrs_;
  schedule::MomentumSchedule momentum_;
  double total_size_ = 0, step_ratio_ = 0;
};

/// One cycle over total_steps steps: up to max_lr, then down to far below the initial rate, with the momentum in the
/// opposite direction (Smith and Topin 2017). Step total_steps keeps the last rate. Throws: UsageError (MU136) from any
/// later step.
class OneCycleLR final : public LRScheduler {
 public:
  OneCycleLR(OptimizerRates optimizer, OneCycleLROptions options);
  std::optional<int64_t> total_steps() const override { return options_.total_steps; }
  SchedulerState state_dict() const override;

 private:
  enum class Rate { initial, max, min };
  struct Phase {
    double end_step;
    Rate from, to;
    bool momentum_from_max, momentum_to_max;
  };
  double next_lr(size_t group, double lr) override;
  void set_others() override;
  void advance() override;
  void load(const SchedulerState& state) override;
  double rate(size_t group, Rate which) const;
  /// The phase at last_epoch(), and the completed fraction of it.
  std::pair<Phase, double> place() const;
  double anneal(double from, double to, double part) const;

  OneCycleLROptions options_;
  std::vector<double> max_lrs_;
  schedule::MomentumSchedule momentum_;
  std::vector<Phase> phases_;
};

}  // namespace muster
