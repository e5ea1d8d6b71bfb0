#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "muster/trainer/batch.h"
#include "muster/trainer/detail/run_inputs.h"
#include "muster/trainer/options.h"

namespace muster::trainer {

class Run;
class RunLoaders;
class RunLog;
class VoteHandler;
class Watchers;

/// Takes the outputs of an evaluation's batches, for predict().
using KeepOutput = std::function<void(StepOutput&, int64_t dataloader_idx)>;

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

}  // namespace muster::trainer
