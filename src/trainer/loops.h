#pragma once

#include "muster/trainer/batch.h"
#include "muster/trainer/detail/run_inputs.h"
#include "muster/trainer/options.h"

namespace muster::trainer {

class Checkpoints;
class Optimization;
class Run;
class RunLoaders;
class RunLog;
class VoteHandler;
class Watchers;

/// Validates, tests or predicts, alone or within a fit(). Owned by the Core. Thread safety: one thread at a time.
class EvaluationLoop {
 public:
  EvaluationLoop(Run& run, RunLog& run_log, RunLoaders& loaders, Watchers& watchers, VoteHandler& votes)
      : run_(run), log_(run_log), loaders_(loaders), watchers_(watchers), votes_(votes) {}

  /// Runs an epoch over the loaders of this kind, and returns the values logged for each loader. Continues the
  /// validation that a resumed checkpoint is from. `most`: the most batches to take of each loader. `keep`: may be
  /// empty. Collective.
  std::vector<Metrics> run(StepKind kind, std::optional<int64_t> most, const KeepOutput& keep);
  /// The dataset indices of the samples in the current batch; empty outside batches.
  std::vector<int64_t> batch_indices() const;

 private:
  void run_loader(StepKind kind, std::size_t index, int64_t first, std::optional<int64_t> most, const KeepOutput& keep);
  void run_batch(StepKind kind, const StepTable& steps, void* batch, BatchPlace place, bool filler,
                 const KeepOutput& keep);

  Run& run_;
  RunLog& log_;
  RunLoaders& loaders_;
  Watchers& watchers_;
  VoteHandler& votes_;
  const data::Pass* pass_ = nullptr;  // pass that batches are taken from
};

/// The loop of fit(): epochs of training batches, with the validations between them. Owned by the Core, with the parts
/// that it drives. Thread safety: one thread at a time.
class FitLoop {
 public:
  FitLoop(Run& run, RunLog& run_log, RunLoaders& loaders, Watchers& watchers, Optimization& optimization,
          Checkpoints& checkpoints, VoteHandler& votes, EvaluationLoop& evaluation)
      : run_(run), log_(run_log), loaders_(loaders), watchers_(watchers), optimization_(optimization),
        checkpoints_(checkpoints), votes_(votes), evaluation_(evaluation) {}

  /// Trains from the checkpoint that ckpt_path names, or from the beginning. Collective.
  void fit(const std::string& ckpt_path);

 private:
  void sanity_check();
  bool prepare_training();
  std::string nothing_to_train();
  void run_epoch();
  void end_epoch();
  void finish_epoch();
  bool run_batch(const StepTable& steps, void* batch, BatchPlace place, bool last);
  void finish_batch(const std::optional<int64_t>& interval);
  void validate();
  void finish_validation();
  bool validation_due(const std::optional<int64_t>& interval);
  void read_clock();
  void resume_epoch_end();
  void resume_batch_end(const std::optional<int64_t>& interval);
  bool steps_done();
  bool stops();
  bool done();

  Run& run_;
  RunLog& log_;
  RunLoaders& loaders_;
  Watchers& watchers_;
  Optimization& optimization_;
  Checkpoints& checkpoints_;
  VoteHandler& votes_;
  EvaluationLoop& evaluation_;
  int64_t first_epoch_ = 0;                  // first epoch of the current fit(); -1 after a resume
  bool validation_interval_passed_ = false;  // whether the main rank's clock asks for a validation
};

}  // namespace muster::trainer
