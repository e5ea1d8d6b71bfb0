#pragma once

#include "checkpoints.h"
#include "loops.h"
#include "optimization.h"
#include "run.h"
#include "run_loaders.h"
#include "run_log.h"
#include "votes.h"
#include "watchers.h"

namespace muster::trainer {

/// What stands behind a Trainer: the state of its runs and the loops, in the order in which one needs another, and the
/// course of a run around its loop, from setup to teardown. Owned by the Trainer; a module refers to it during a run.
/// Thread safety: one thread at a time.
class Core {
 public:
  /// Starts the other local ranks, and makes the trackers. Collective.
  Core(Trainer& trainer, const TrainerOptions& options);

  void fit(RunInputs inputs, const FitOptions& how);
  std::vector<Metrics> evaluate(RunInputs inputs, StepKind kind, const EvaluateOptions& how, const KeepOutput& keep);

  Run run;
  RunLog run_log;
  RunLoaders loaders;
  Watchers watchers;
  Optimization optimization;
  Checkpoints checkpoints;
  VoteHandler votes;
  EvaluationLoop evaluation;
  FitLoop fit_loop;

 private:
  void refuse_nested_run(const RunInputs& inputs) const;
  void perform(RunInputs inputs, Stage stage, const std::function<void()>& body);
  void begin(Stage stage);
  void end(Stage stage);
  void fail(Stage stage, const std::exception_ptr& error, bool torn_down) noexcept;
  std::vector<std::shared_ptr<Callback>> all_callbacks();
  void prepare_data();
  void prepare_model();
};

}  // namespace muster::trainer
