#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "log_book.h"
#include "muster/runtime.h"
#include "muster/track/trackers.h"
#include "muster/trainer/options.h"
#include "muster/tree/state.h"

namespace muster::trainer {

// Why: docs/decisions/0101-the-trainers-logger.md.

/// The values that a Trainer's runs send to its trackers, on the main rank, with their steps. The step of training is
/// the number of batches so far whose accumulation window has ended; the step of an evaluation counts its batches.
class ExperimentLog {
 public:
  ExperimentLog() = default;
  ExperimentLog(const ExperimentLog&) = delete;
  ExperimentLog& operator=(const ExperimentLog&) = delete;
  ~ExperimentLog();

  /// Makes the trackers. Collective.
  void open(const Runtime& runtime, const TrainerOptions& options);
  /// Whether any rank has trackers.
  bool active() const noexcept { return !folder_.empty(); }
  const Trackers& trackers() const noexcept { return trackers_; }
  const std::filesystem::path& folder() const noexcept { return folder_; }
  const Metrics& logged() const noexcept { return logged_; }

  /// The step of the current training batch.
  int64_t step() const noexcept { return steps_; }
  /// The step of the previous training batch, under which values of a training epoch are logged.
  int64_t last_step() const noexcept { return steps_ > 0 ? steps_ - 1 : 0; }
  void count_step() noexcept { ++steps_; }
  /// Whether values of the current training batch are to be written.
  bool due(bool run_ends) const noexcept { return every_ > 0 && ((steps_ + 1) % every_ == 0 || run_ends); }

  /// Writes hyper-parameters that are new or have changed.
  void log_hyperparams(const State& values);
  /// Writes a row with the epoch in it. A value named "step" replaces the step.
  void log(Metrics values, int64_t step, int64_t epoch);
  /// Writes a row of a training step or of a callback.
  void log(const Metrics& values, int64_t step);
  /// Adds values of the next batch of an evaluation of this kind. Values on a device are read later.
  void log_evaluation_step(std::size_t kind, int64_t loader, LateValues values);
  /// Reads values that wait for a device, and writes their rows.
  void read_waiting();
  /// Ends a run and flushes the trackers.
  void end_run(RunStatus status);

  /// The steps so far. Values that wait for a device are read first, so that none is lost.
  State state_dict();
  void load_state_dict(const State& state);

 private:
  struct Row {
    int64_t step;
    LateValues values;
  };
  bool writes() const noexcept { return active() && main_; }

  bool main_ = false;
  int64_t every_ = 0;
  int64_t steps_ = 0;  // number of training batches so far that ended a window
  RunStatus status_ = RunStatus::success;
  std::filesystem::path folder_;
  std::map<std::pair<std::size_t, int64_t>, int64_t> evaluated_;  // number of batches by kind and loader
  std::map<std::string, std::string> hyperparams_;                // logged hyper-parameters, as text
  std::vector<Row> waiting_;
  Metrics logged_;
  Trackers trackers_;
};

/// Throws: UsageError (MU434) if a module and its data module have different values for one hyper-parameter, or values
/// that cannot be logged.
void check_hyperparameters(const State& of_module, const State& of_data);

}  // namespace muster::trainer
