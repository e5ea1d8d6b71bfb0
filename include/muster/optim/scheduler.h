#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace muster {

/// What a scheduler saves: numbers by name. Those of a part of a composed schedule begin with its index: "0/last_epoch".
using SchedulerState = std::map<std::string, std::vector<double>>;

/// An optimizer whose learning rates are scheduled, with the rates its groups had before the first scheduler changed them
/// (Python's "initial_lr"). Made from the optimizer wherever a scheduler takes one. Copies share those rates: several
/// schedulers of one optimizer that are made from one OptimizerRates all start from them.
class OptimizerRates {
 public:
  /// Borrows the optimizer, which must outlive the schedulers. Its parameter groups stay as they are.
  OptimizerRates(torch::optim::Optimizer& optimizer);

  torch::optim::Optimizer& optimizer() const noexcept { return *optimizer_; }
  size_t groups() const noexcept;
  /// Throws: UsageError (MU137) if the optimizer has got another number of groups since.
  std::vector<double> get() const;
  void set(const std::vector<double>& rates) const;
  /// The rates before the first scheduler; read when first asked for.
  std::vector<double>& initial() const;

 private:
  torch::optim::Optimizer* optimizer_;
  size_t groups_;
  std::shared_ptr<std::vector<double>> initial_;
};

/// Sets an optimizer's learning rates as training goes on; the rates and words are those of Python's
/// torch.optim.lr_scheduler.LRScheduler. The constructor sets the first rates; step() is to be called once after each
/// optimizer step, whatever the world size. Derive from it for a schedule of your own: give next_lr(), and call begin()
/// at the end of the constructor. Thread safety: one thread at a time.
class LRScheduler {
 public:
  virtual ~LRScheduler() = default;
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  /// Throws: UsageError (MU137) if the optimizer has got more parameter groups.
  virtual void step();
  /// The rates that the last step set, one per group.
  const std::vector<double>& get_last_lr() const noexcept { return last_lr_; }
  /// Steps so far, counted as Python does: 0 after construction.
  int64_t last_epoch() const noexcept { return last_epoch_; }

  /// All that a scheduler made with the same options, on an optimizer with the same groups, needs to go on alike; the
  /// optimizer's rates, and the momenta that the schedule sets, included.
  virtual SchedulerState state_dict() const;
  /// Also sets the optimizer's rates and momenta. Options are those of the constructor.
  /// Throws: UsageError (MU138) if the state is not one of such a scheduler; nothing is changed then.
  void load_state_dict(const SchedulerState& state);

  torch::optim::Optimizer& optimizer() const noexcept { return rates_.optimizer(); }

 protected:
  explicit LRScheduler(OptimizerRates rates);
  LRScheduler(LRScheduler&&) = default;
  LRScheduler& operator=(LRScheduler&&) = default;

  /// The rate of this group at last_epoch(), given the one it has.
  virtual double next_lr(size_t group, double lr) = 0;
  /// The rate at last_epoch() without regard to what others made of it, where a SequentialLR starts this schedule.
  virtual double closed_form_lr(size_t group, double lr) { return next_lr(group, lr); }
  /// Goes to the next step.
  virtual void advance() { ++last_epoch_; }
  /// Sets what else the schedule sets, such as momentum, at last_epoch().
  virtual void set_others() {}
  virtual void load(const SchedulerState& state);

  /// Sets the first rates.
  virtual void begin();
  /// Starts over at step 0 in the middle of a sequence.
  virtual void restart();
  void set_rates(const std::vector<double>& rates);

  double base_lr(size_t group) const { return base_lrs_[group]; }
  /// The first rates are being set.
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
