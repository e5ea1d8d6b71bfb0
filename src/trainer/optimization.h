#pragma once

#include "log_book.h"
#include "muster/data/detail/loader_state.h"
#include "muster/runtime.h"
#include "muster/trainer/detail/run_inputs.h"
#include "muster/trainer/optimizers.h"
#include "muster/trainer/options.h"
#include "muster/tree/state.h"
#include "preparation.h"

namespace muster::trainer {

class Run;
class RunLoaders;
class RunLog;

/// The position at which the open window of accumulated gradients began. If a checkpoint cannot restore the gradients
/// of the window, training continues from here.
struct WindowBegin {
  int64_t batches = 0, total_batches = 0;
  std::vector<data::LoaderPosition> loaders = {};
  std::optional<LogBook> book = {};  ///< log at the beginning of the window; empty if no window was noted

  State state_dict() const;
  void load_state_dict(const State& state, LatestMetrics& latest);
};

/// The batches whose gradients go into one update.
struct AccumulationWindow {
  bool begins = true;     ///< the next training batch is the first of the window
  bool has_loss = false;  ///< some batch of the window had a loss on this rank
  WindowBegin begin = {};
};

/// The updates of a fit(): its optimizers and schedules, the accumulation window, and the hooks around backward and
/// step. Owned by the Core; the fit loop gives it the batches. Thread safety: one thread at a time.
class Optimization {
 public:
  Optimization(Run& run, RunLog& run_log, RunLoaders& loaders) : run_(run), log_(run_log), loaders_(loaders) {}

  /// Makes the optimizers and schedules that configure_optimizers() returns. Throws: UsageError (MU438, MU443).
  void set_up();
  /// Warns of schedules that were made for another number of steps than this training has.
  void compare_schedules();

  /// Runs training_step() on a batch, and in automatic optimization backward and, at the end of a window, the update.
  /// `last`: the batch is the last one of the epoch.
  StepOutput train_on(const StepTable& steps, void* batch, BatchPlace place, bool last);
  /// Steps the plateau schedules that are due at the end of a batch, or of an epoch.
  void step_plateau_schedules(ScheduleInterval interval);

  // called by modules and their optimizers
  at::Tensor step(ScheduledUpdates& updates, const ModuleOptimizer::Closure& closure);
  void clip(const ModuleOptimizer& optimizer, const GradientClipOptions& how);
  void manual_backward(const at::Tensor& loss);
  muster::runtime::NoSyncScope no_sync();
  void set_accumulate_grad_batches(int batches);

  const AccumulationWindow& window() const noexcept { return window_; }
  /// Whether no window is open: the next training batch begins one.
  bool window_begins() const noexcept { return window_.begins; }
  /// Begins a run, or resumes one: sets whether a window is open, and whether it has a loss.
  void set_window(bool begins, bool has_loss) { window_.begins = begins, window_.has_loss = has_loss; }
  /// Notes where the loaders and the log are. Called before the first batch of a window.
  void note_window_begin();
  /// `state`: beginning of the open window in a resumed checkpoint; nullptr if it has none.
  void load_window_begin(const State* state);
  /// Goes back to the beginning of the open window: its batches, and what followed the last of them, are repeated.
  void go_back_to_window_begin();

 private:
  void add_schedule(ScheduledUpdates& updates, const LRSchedulerConfig& config);
  StepOutput training_step(const StepTable& steps, void* batch, BatchPlace place);
  StepOutput optimize(const StepTable& steps, void* batch, BatchPlace place, bool ends_window, bool last);
  void backward(const at::Tensor& loss);
  bool make_gradients(ScheduledUpdates& updates, const ModuleOptimizer::Closure& closure, at::Tensor& loss);
  bool step_by_closure(ScheduledUpdates& updates, const ModuleOptimizer::Closure& closure, at::Tensor& loss);

  Run& run_;
  RunLog& log_;
  RunLoaders& loaders_;
  AccumulationWindow window_;
};

}  // namespace muster::trainer
