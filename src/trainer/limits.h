#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/trainer/callback.h"
#include "muster/trainer/detail/members.h"
#include "muster/trainer/options.h"

namespace muster::trainer {

/// The options in force: fast_dev_run and unset values resolved.
/// Throws: ConfigError (MU440), which names everything that is wrong.
TrainerOptions checked(TrainerOptions options);

/// Whether one of the callbacks is of this class.
template <class C>
bool has_callback(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  return std::ranges::any_of(callbacks, [](const auto& one) { return dynamic_cast<const C*>(one.get()) != nullptr; });
}

/// Batches to take of a loader with `size` batches (nullopt: unknown); nullopt: all, however many there are.
/// `option` is its name for messages. Throws: ConfigError (MU445) for a part that is less than one batch, or of an
/// unknown size.
std::optional<int64_t> batches_of(const BatchLimit& limit, std::optional<int64_t> size, const std::string& option);

/// Which batches an evaluation of this kind takes of each loader.
const BatchLimit& evaluation_limit(const TrainerOptions& options, StepKind kind);

/// After how many batches validation runs; nullopt: at the end of the epoch only, or when a clock says so.
/// `batches`: of an epoch, if known. `across`: counted through all epochs.
/// Throws: ConfigError (MU445) for an interval longer than the epoch, unless `across`.
std::optional<int64_t> validation_interval(const CheckInterval& interval, std::optional<int64_t> batches, bool across);

/// Updates of one optimizer in a whole run whose epochs have so many batches (nullopt: unknown); nullopt: without end.
/// Requires: options in force.
std::optional<int64_t> estimated_steps(const TrainerOptions& options, std::optional<int64_t> batches);

/// Whether a run must end, may end, and is asked to.
struct StopRule {
  std::optional<int64_t> max_epochs, min_epochs, min_steps;  ///< max: nullopt: no limit
  int64_t max_steps = -1;

  explicit StopRule(const TrainerOptions& options);
  bool steps_done(int64_t global_step) const { return max_steps >= 0 && global_step >= max_steps; }
  bool epochs_done(int64_t epochs) const { return max_epochs && epochs >= *max_epochs; }
  /// Whether the minima are reached.
  bool may_stop(int64_t epochs, int64_t global_step) const {
    return epochs >= min_epochs.value_or(0) && global_step >= min_steps.value_or(0);
  }
};

}  // namespace muster::trainer
