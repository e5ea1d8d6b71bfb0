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

/// What the runs of a Trainer send to its trackers, on the main rank, and under which steps. A step of training is the
/// number of batches before it whose accumulation window has ended; a step of an evaluation counts its batches.
class ExperimentLog {
 public:
  ExperimentLog() = default;
  ExperimentLog(const ExperimentLog&) = delete;
  ExperimentLog& operator=(const ExperimentLog&) = delete;
  ~ExperimentLog();

  /// Makes the trackers. Collective.
  void open(const Runtime& runtime, const TrainerOptions& options);
  /// Whether there are trackers, on any rank.
  bool active() const noexcept { return !folder_.empty(); }
  const Trackers& trackers() const noexcept { return trackers_; }
  const std::filesystem::path& folder() const noexcept { return folder_; }
  const Metrics& logged() const noexcept { return logged_; }

  /// The step of the current training batch.
  int64_t step() const noexcept { return steps_; }
  /// That of the last one, to which the values of a training epoch belong.
  int64_t last_step() const noexcept { return steps_ > 0 ? steps_ - 1 : 0; }
  void count_step() noexcept { ++steps_; }
  /// Whether values of the current training batch are written.
  bool due(bool run_ends) const noexcept { return every_ > 0 && ((steps_ + 1) % every_ == 0 || run_ends); }

  /// Writes those that are new or have changed.
  void log_hyperparams(const State& values);
  /// A row with the epoch in it, or under another step, if "step" is among the values.
  void log(Metrics values, int64_t step, int64_t epoch);
  /// A row of a training step or of a callback.
  void log(const Metrics& values, int64_t step);
  /// Values of the next batch of an evaluation; `key` says of which. Values on a device are read later.
  void log_evaluation_step(std::size_t kind, int64_t loader, LateValues values);
  /// Reads values that wait for a device.
  void read_waiting();
  /// Ends a run: all is written.
  void end_run(RunStatus status);

  /// The steps so far; values that wait for a device are read, so that none is lost.
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
  int64_t steps_ = 0;  // training batches so far that ended a window
  RunStatus status_ = RunStatus::success;
  std::filesystem::path folder_;
  std::map<std::pair<std::size_t, int64_t>, int64_t> evaluated_;  // batches by kind and loader
  std::map<std::string, std::string> hyperparams_;                // logged so far, as text
  std::vector<Row> waiting_;
  Metrics logged_;
  Trackers trackers_;
};

/// Throws: UsageError (MU434) if hyper-parameters of a module and of its data module differ in one of the same name, or
/// hold what cannot be logged.
void check_hyperparameters(const State& of_module, const State& of_data);

}  // namespace muster::trainer
