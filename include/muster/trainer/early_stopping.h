#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace muster {

/// Options of EarlyStopping, with Lightning's names and defaults.
struct EarlyStoppingOptions {
  bool check_finite = true;                           ///< stop if the metric is infinite or NaN
  std::optional<bool> check_on_train_epoch_end = {};  ///< unset: if validation runs at the end of epochs only
  std::optional<double> divergence_threshold = {};    ///< stop if the metric is worse than this
  double min_delta = 0.0;                             ///< an improvement is greater than this
  MonitorMode mode = "min";
  std::string monitor = {};
  int64_t patience = 3;                           ///< checks without improvement until training stops
  std::optional<double> stopping_threshold = {};  ///< stop if the metric is better than this
  bool strict = true;                             ///< a missing metric is an error
};

/// Ends training when a metric stops improving. If any rank decides to stop, all ranks stop; a rank that has not logged
/// the metric has no vote. Collective.
class EarlyStopping : public Callback {
 public:
  /// Throws: ConfigError (MU451), listing everything that is wrong with the options.
  explicit EarlyStopping(EarlyStoppingOptions options);
  Place place() const override { return Place::last; }
  std::string state_key() const override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;
  /// Throws: UsageError (MU449), listing the logged metrics, if no rank has logged this one.
  void on_train_epoch_end(Trainer& trainer, TrainerModule& module) override;
  void on_validation_end(Trainer& trainer, TrainerModule& module) override;

  /// The best value seen.
  double best_score() const noexcept { return best_; }
  /// The epoch in which training was stopped; 0 if it was not.
  int64_t stopped_epoch() const noexcept { return stopped_epoch_; }
  /// Checks since the last improvement.
  int64_t wait_count() const noexcept { return wait_count_; }
  /// Why training was stopped; empty if it was not.
  const std::string& stopping_reason() const noexcept { return reason_; }

 private:
  bool checks_at_train_epoch_end(const Trainer& trainer) const;
  void check(Trainer& trainer);
  /// Checks a value of the metric; returns the reason to stop, or an empty string.
  std::string judge(double value);

  EarlyStoppingOptions options_;
  double best_;
  std::string reason_;
  int64_t stopped_epoch_ = 0;
  int64_t wait_count_ = 0;
};

}  // namespace muster
