#pragma once

#include <algorithm>

#include "muster/trainer/callback.h"
#include "muster/trainer/detail/members.h"
#include "muster/trainer/options.h"

namespace muster::trainer {

/// The effective options: fast_dev_run and unset values are resolved.
/// Throws: ConfigError (MU440) with everything that is wrong.
TrainerOptions checked(TrainerOptions options);

/// Whether any callback is of this class.
template <class C>
bool has_callback(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  return std::ranges::any_of(callbacks, [](const auto& one) { return dynamic_cast<const C*>(one.get()) != nullptr; });
}

/// The number of batches to take from a loader with `size` batches (nullopt: unknown); nullopt: all of them. `option`
/// names the limit in messages.
/// Throws: ConfigError (MU445) for a fraction that is less than one batch, or of an unknown size.
std::optional<int64_t> batches_of(const BatchLimit& limit, std::optional<int64_t> size, const std::string& option);

/// The limit on batches of each loader in an evaluation of this kind.
const BatchLimit& evaluation_limit(const TrainerOptions& options, StepKind kind);

/// The number of batches after which validation runs; nullopt: only at the end of the epoch, or by the clock.
/// `batches`: number of batches in an epoch, if known. `across`: count through all epochs.
/// Throws: ConfigError (MU445) for an interval longer than the epoch, unless `across`.
std::optional<int64_t> validation_interval(const CheckInterval& interval, std::optional<int64_t> batches, bool across);

/// Decides whether a run must end and whether a request to stop is granted.
struct StopRule {
  const TrainerOptions& options;

  bool has_last_epoch() const { return options.max_epochs.value_or(-1) >= 0; }
  bool steps_done(int64_t global_step) const { return options.max_steps >= 0 && global_step >= options.max_steps; }
  bool epochs_done(int64_t epochs) const { return has_last_epoch() && epochs >= *options.max_epochs; }
  /// Whether the minima are reached.
  bool may_stop(int64_t epochs, int64_t global_step) const {
    return epochs >= options.min_epochs.value_or(0) && global_step >= options.min_steps.value_or(0);
  }
};

}  // namespace muster::trainer
