#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/schedule/options.h"
#include "muster/schedule/scheduler.h"

// The schedulers of Python's torch.optim.lr_scheduler, with its formulas; n is last_epoch(), "base" the initial rate.
// Each takes any optimizer of LibTorch. All constructors throw ConfigError (MU135) for invalid options, including a
// list of values whose length is not the number of parameter groups.

namespace muster {

/// base * lr_lambda(n).
class LambdaLR final : public LRScheduler {
 public:
  LambdaLR(OptimizerRates optimizer, const LambdaLROptions& options);

 private:
  double next_lr(size_t group, double lr) override;
  std::vector<std::function<double(int64_t)>> lambdas_;
};

/// Multiplies the rate by lr_lambda(n) at each step.
class MultiplicativeLR final : public LRScheduler {
 public:
  MultiplicativeLR(OptimizerRates optimizer, const MultiplicativeLROptions& options);

 private:
  double next_lr(size_t group, double lr) override;
  std::vector<std::function<double(int64_t)>> lambdas_;
};

/// Multiplies the rate by gamma every step_size steps.
class StepLR final : public LRScheduler {
 public:
  StepLR(OptimizerRates optimizer, StepLROptions options);

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  StepLROptions options_;
};

/// Multiplies the rate by gamma at each milestone.
class MultiStepLR final : public LRScheduler {
 public:
  MultiStepLR(OptimizerRates optimizer, MultiStepLROptions options);

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  MultiStepLROptions options_;
};

/// Multiplies the rate by factor until step total_iters.
class ConstantLR final : public LRScheduler {
 public:
  explicit ConstantLR(OptimizerRates optimizer, ConstantLROptions options = {});

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  ConstantLROptions options_;
};

/// Multiplies the rate by a factor that goes from start_factor to end_factor over total_iters steps.
class LinearLR final : public LRScheduler {
 public:
  explicit LinearLR(OptimizerRates optimizer, LinearLROptions options = {});

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  LinearLROptions options_;
};

/// Multiplies the rate by gamma at each step.
class ExponentialLR final : public LRScheduler {
 public:
  ExponentialLR(OptimizerRates optimizer, ExponentialLROptions options);

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  ExponentialLROptions options_;
};

/// Multiplies the rate by (1 - n / total_iters) ^ power.
class PolynomialLR final : public LRScheduler {
 public:
  explicit PolynomialLR(OptimizerRates optimizer, PolynomialLROptions options = {});
  std::optional<int64_t> total_steps() const override { return options_.total_iters; }

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  PolynomialLROptions options_;
};

/// Goes from base to eta_min along half a cosine wave of T_max steps, and back (Loshchilov and Hutter 2016, without
/// restarts).
class CosineAnnealingLR final : public LRScheduler {
 public:
  CosineAnnealingLR(OptimizerRates optimizer, CosineAnnealingLROptions options);
  std::optional<int64_t> total_steps() const override { return options_.T_max; }

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  CosineAnnealingLROptions options_;
};

/// Goes from base to eta_min along half a cosine wave of T_0 steps, then again over T_mult times as many steps, and so
/// on (Loshchilov and Hutter 2016).
class CosineAnnealingWarmRestarts final : public LRScheduler {
 public:
  CosineAnnealingWarmRestarts(OptimizerRates optimizer, CosineAnnealingWarmRestartsOptions options);
  SchedulerState state_dict() const override;

 private:
  double next_lr(size_t group, double lr) override;
  void advance() override;
  void load(const SchedulerState& state) override;
  CosineAnnealingWarmRestartsOptions options_;
  int64_t T_cur_ = 0, T_i_ = 0;
};

/// Grows linearly from 0 to base over warmup_steps steps. Then stays constant, or goes to end_factor * base at
/// total_steps along a line or half a cosine wave and stays there. Equals a LambdaLR with the factors that Hugging Face
/// Transformers uses.
class WarmupLR final : public LRScheduler {
 public:
  WarmupLR(OptimizerRates optimizer, WarmupLROptions options);
  std::optional<int64_t> total_steps() const override;

 private:
  double next_lr(size_t group, double lr) override;
  WarmupLROptions options_;
};

namespace schedule {

/// A scheduler that may set momentum with the rate: `momentum` of SGD and RMSprop, the first beta of Adam and AdamW.
class MomentumSchedule : public LRScheduler {
 public:
  SchedulerState state_dict() const override;

 protected:
  explicit MomentumSchedule(OptimizerRates optimizer) : LRScheduler(std::move(optimizer)) {}
  /// Throws: ConfigError (MU135) if the optimizer has no momentum.
  void schedule_momentum(const PerGroup<double>& base, const PerGroup<double>& max);
  /// The momentum at last_epoch() of a group with this range.
  virtual double momentum(double base, double max) const = 0;
  void load(const SchedulerState& state) override;

 private:
  void set_others() override;
  std::vector<double> base_momenta_, max_momenta_;  // by group; empty: momentum stays
};

}  // namespace schedule

/// Cycles between base_lr and max_lr, and the momentum in the opposite direction (Smith 2015).
class CyclicLR final : public schedule::MomentumSchedule {
 public:
  CyclicLR(OptimizerRates optimizer, CyclicLROptions options);

 private:
  double next_lr(size_t group, double lr) override;
  double momentum(double base, double max) const override { return max - (max - base) * height(); }
  /// The fraction of the range between base and max at last_epoch().
  double height() const;

  CyclicLROptions options_;
  std::vector<double> max_lrs_;
  double total_size_ = 0, step_ratio_ = 0;
};

/// One cycle over total_steps steps: up to max_lr, then down to far below the initial rate, with the momentum in the
/// opposite direction (Smith and Topin 2017). Step total_steps keeps the last rate. Throws: UsageError (MU136) from any
/// later step.
class OneCycleLR final : public schedule::MomentumSchedule {
 public:
  OneCycleLR(OptimizerRates optimizer, OneCycleLROptions options);
  std::optional<int64_t> total_steps() const override { return options_.total_steps; }

 private:
  enum class Rate { initial, max, min };
  struct Phase {
    double end_step;
    Rate from, to;
  };
  double next_lr(size_t group, double lr) override;
  double momentum(double base, double max) const override;
  void advance() override;
  double rate(size_t group, Rate which) const;
  /// The phase at last_epoch(), and the completed fraction of it.
  std::pair<Phase, double> place() const;
  double anneal(double from, double to, double part) const;

  OneCycleLROptions options_;
  std::vector<double> max_lrs_;
  std::vector<Phase> phases_;
};

/// Makes the scheduler that these options describe.
std::unique_ptr<LRScheduler> make_scheduler(OptimizerRates optimizer, const Schedule& schedule);

/// A scheduler composed of others, which share the optimizer's initial rates.
class ComposedScheduler : public LRScheduler {
 public:
  SchedulerState state_dict() const override;

 protected:
  /// Throws: ConfigError (MU135) for an empty list of schedules.
  ComposedScheduler(OptimizerRates optimizer, const std::vector<Schedule>& schedules);
  double next_lr(size_t, double lr) override { return lr; }
  void load(const SchedulerState& state) override;
  void begin() override;
  void restart() override;
  /// Goes back to the state before the first step, with the initial rates.
  void rewind();
  void begin_part(size_t index) { parts_[index]->begin(); }
  void restart_part(size_t index) { parts_[index]->restart(); }
  void note_rates() { last_lr_ = rates_.get(); }

  std::vector<std::unique_ptr<LRScheduler>> parts_;
};

/// Runs schedules one after another: at each milestone the next schedule starts. As in Python, a schedule starts over
/// at a milestone from the initial rate if it can compute its rate at step 0 directly, and from the current rate
/// otherwise (MultiplicativeLR).
/// SequentialLR(adam, {.milestones = {500}, .schedules = {LinearLROptions{...}, CosineAnnealingLROptions{...}}}).
class SequentialLR final : public ComposedScheduler {
 public:
  /// Throws: ConfigError (MU135) unless milestones are ascending and there is one fewer of them than schedules.
  SequentialLR(OptimizerRates optimizer, SequentialLROptions options);
  void step() override;
  std::optional<int64_t> total_steps() const override;

 private:
  void begin() override;
  std::vector<int64_t> milestones_;
};

/// Runs several schedules at once: each changes the rate that the previous one set.
class ChainedScheduler final : public ComposedScheduler {
 public:
  ChainedScheduler(OptimizerRates optimizer, const ChainedSchedulerOptions& options);
  void step() override;
};

/// Multiplies the rate by factor when a metric has not improved for more than `patience` steps.
class ReduceLROnPlateau final : public LRScheduler {
 public:
  /// Throws: ConfigError (MU135) for invalid options.
  explicit ReduceLROnPlateau(OptimizerRates optimizer, ReduceLROnPlateauOptions options = {});
  /// Not collective: the metric must be equal on all ranks for equal rates; a prepared scheduler ensures this.
  void step(double metric);
  /// Throws: UsageError (MU139), always: this scheduler needs a metric.
  void step() override;
  SchedulerState state_dict() const override;

 private:
  double next_lr(size_t group, double lr) override;
  void load(const SchedulerState& state) override;
  bool better(double metric) const;

  ReduceLROnPlateauOptions options_;
  std::vector<double> min_lrs_;
  double best_;
  int64_t cooldown_ = 0, bad_steps_ = 0;
};

}  // namespace muster
