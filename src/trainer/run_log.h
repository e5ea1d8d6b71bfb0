#pragma once

#include "log_book.h"
#include "muster/runtime.h"
#include "muster/track/trackers.h"
#include "muster/trainer/detail/members.h"
#include "muster/trainer/options.h"
#include "muster/tree/state.h"

namespace muster::trainer {

class Run;

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
  int64_t steps_ = 0;  // training batches so far that ended a window
  RunStatus status_ = RunStatus::success;
  std::filesystem::path folder_;
  std::map<std::pair<std::size_t, int64_t>, int64_t> evaluated_;  // batches by kind and loader
  std::map<std::string, std::string> hyperparams_;                // hyper-parameters that were logged, as text
  std::vector<Row> waiting_;
  Metrics logged_;
  Trackers trackers_;
};

/// What the module and the callbacks of a run log: the books of its two loops, the last value of each name, and what
/// goes to the trackers. Owned by the Core. Thread safety: one thread at a time.
class RunLog {
 public:
  /// Makes the trackers. Collective.
  explicit RunLog(const Run& run);

  /// Begins a run.
  void begin();
  /// Forgets the metric objects of a run that has failed.
  void reset_metrics();

  // called by modules
  void log(std::string_view name, const at::Tensor& value, const LogOptions& how);
  void log(std::string_view name, double value, const LogOptions& how);
  void log(std::string_view name, Metric& metric, const LogOptions& how);

  // where the loops are, as log() needs it
  void begin_training_batch(int64_t batch_size);
  /// Begins an evaluation. Returns the place that end_evaluation() goes back to.
  LogContext begin_evaluation();
  void end_evaluation(const LogContext& before) { context_ = before; }
  /// `loader`: index of the batch's loader; -1: there is one loader. `filler`: the batch has no real sample.
  void begin_evaluation_batch(int64_t loader, bool filler);
  void set_batch_size(int64_t batch_size) { context_.batch_size = batch_size; }
  void end_evaluation_batch() { context_.filler = false; }
  /// Ends the batches of an epoch, before the hooks at its end.
  void end_batches();

  /// Reduces what was logged for the epoch over ranks. Collective.
  void close(LogBook& book);

  void log_hyperparameters();
  /// Warns if an epoch of so many batches is too short for log_every_n_steps.
  void warn_log_every_n_steps(std::optional<int64_t> batches) const;
  /// Whether values of the current training batch are sent to the logger.
  bool logs_this_step() const noexcept;
  /// Sends the values of a training batch that ends a window to the logger.
  void log_training_step();
  void log_training_epoch() { log_epoch(training, experiment.last_step()); }
  void log_evaluation_epoch() { log_epoch(evaluation, experiment.step()); }
  /// `loader`: index of the loader of the batch.
  void log_evaluation_step(StepKind kind, int64_t loader);

  /// What this rank has logged since the last epochs, and the last values. Collective.
  State state_of_rank();
  /// Loads states of state_of_rank() of all ranks of a checkpoint, an empty one being equal to the first, and returns
  /// the one for this rank. `restarts_window`: the log goes back to the beginning of the open accumulation window.
  const State& load_states_of_ranks(const State::List& all, bool restarts_window);

  LatestMetrics latest;
  ExperimentLog experiment;
  LogBook training{latest}, evaluation{latest};

 private:
  /// Notes the hook that logs. Returns false, and warns once, if nothing is logged.
  bool begin_log();
  LogBook& book() { return context_.evaluates ? evaluation : training; }
  void log_epoch(LogBook& book, int64_t step);

  const Run& run_;
  LogContext context_;
  bool warned_barebones_ = false;
};

}  // namespace muster::trainer
