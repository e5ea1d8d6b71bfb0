#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

namespace muster {

/// The saved state of a scheduler: numbers by name. In a composed schedule, names of a part begin with its index:
/// "0/last_epoch".
using SchedulerState = std::map<std::string, std::vector<double>>;

/// An optimizer whose learning rates are scheduled, with the initial rates of its groups, before the first scheduler
/// changed them (Python's "initial_lr"). An optimizer converts to it wherever a scheduler takes one. Copies share the
/// initial rates: all schedulers made from one OptimizerRates start from them.
class OptimizerRates {
 public:
  /// Borrows the optimizer, which must outlive the schedulers. Its parameter groups stay as they are.
  OptimizerRates(torch::optim::Optimizer& optimizer);

  torch::optim::Optimizer& optimizer() const noexcept { return *optimizer_; }
  size_t groups() const noexcept { return groups_; }
  /// The current rates.
  /// Throws: UsageError (MU137) if the number of the optimizer's groups has changed.
  std::vector<double> get() const;
  void set(const std::vector<double>& rates) const;
  /// The initial rates, read from the optimizer at the first call.
  std::vector<double>& initial() const;

 private:
  torch::optim::Optimizer* optimizer_;
  size_t groups_;
  std::shared_ptr<std::vector<double>> initial_;
};

/// Sets an optimizer's learning rates during training, with the rates and names of Python's
/// torch.optim.lr_scheduler.LRScheduler. The constructor sets the first rates; call step() once after each optimizer
/// step, whatever the world size. To write a custom schedule, derive from it, implement next_lr(), and call begin() at
/// the end of the constructor. See docs/decisions/0050-schedulers-of-our-own.md. Thread safety: one thread at a time.
class LRScheduler {
 public:
  virtual ~LRScheduler() = default;
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  /// Makes one step.
  /// Throws: UsageError (MU137) if the number of the optimizer's parameter groups has changed.
  virtual void step();
  /// The rates that the last step set, one per group.
  const std::vector<double>& get_last_lr() const noexcept { return last_lr_; }
  /// Steps so far, counted as Python does: 0 after construction.
  int64_t last_epoch() const noexcept { return last_epoch_; }

  /// The number of steps that the schedule is made for, if any other number is a mistake; nullopt: any number is fine.
  virtual std::optional<int64_t> total_steps() const { return std::nullopt; }

  /// The state from which a scheduler with equal options, on an optimizer with equal groups, continues identically; it
  /// includes the optimizer's rates and the momenta that the schedule sets.
  virtual SchedulerState state_dict() const;
  /// Loads a state, including the optimizer's rates and momenta. The options do not change.
  /// Throws: UsageError (MU138), changing nothing, if the state does not fit this scheduler.
  void load_state_dict(const SchedulerState& state);

  torch::optim::Optimizer& optimizer() const noexcept { return rates_.optimizer(); }

 protected:
  explicit LRScheduler(OptimizerRates rates);
  LRScheduler(LRScheduler&&) = default;
  LRScheduler& operator=(LRScheduler&&) = default;

  /// The rate of this group at last_epoch(), given its current rate.
  virtual double next_lr(size_t group, double lr) = 0;
  /// The rate at last_epoch(), regardless of changes by other schedules; used when a SequentialLR starts this schedule.
  virtual double closed_form_lr(size_t group, double lr) { return next_lr(group, lr); }
  /// Advances to the next step.
  virtual void advance() { ++last_epoch_; }
  /// Sets the other values that the schedule controls, such as momentum, at last_epoch().
  virtual void set_others() {}
  virtual void load(const SchedulerState& state);

  /// Sets the first rates.
  virtual void begin();
  /// Restarts at step 0 within a sequence.
  virtual void restart();
  void set_rates(const std::vector<double>& rates);

  double base_lr(size_t group) const { return base_lrs_[group]; }
  /// Whether the first rates are being set.
  bool initial() const noexcept { return initial_; }

  OptimizerRates rates_;
  std::vector<double> base_lrs_;
  std::vector<double> last_lr_;
  int64_t last_epoch_ = -1;

 private:
  friend class ComposedScheduler;
  bool initial_ = false;
};

}  // namespace muster
