#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "muster/schedule/options.h"
#include "muster/schedule/scheduler.h"

namespace muster {

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
