#pragma once

#include "muster/runtime.h"
#include "muster/runtime/opened_checkpoint.h"
#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"
#include "muster/tree/state.h"

namespace muster::trainer {

class Optimization;
class Run;
class RunLoaders;
class RunLog;
class Watchers;

/// Whether the checkpoint was written inside a batch, so that training cannot be resumed from it bit-exactly.
bool is_interrupted_checkpoint(const Runtime& runtime, const std::filesystem::path& folder);
/// Throws: UsageError (MU452), since another callback saves its state under the same key.
[[noreturn]] void refuse_equal_keys(const Callback& callback);

/// The checkpoints of a Trainer's runs: writes them, chooses one, and loads it. Owned by the Core. Thread safety: one
/// thread at a time.
class Checkpoints {
 public:
  Checkpoints(Run& run, RunLog& run_log, RunLoaders& loaders, Watchers& watchers, Optimization& optimization)
      : run_(run), log_(run_log), loaders_(loaders), watchers_(watchers), optimization_(optimization) {}

  /// Collective.
  void save(const std::filesystem::path& folder, const SaveCheckpointOptions& how);
  /// Saves the next hpc_ckpt_N.ckpt in default_root_dir, and returns its path. Collective.
  std::filesystem::path save_numbered();

  /// The checkpoint where fit() continues after its job was started again; empty: at the beginning. Collective.
  std::filesystem::path after_restart();
  /// The checkpoint that ckpt_path names, equal on every rank; empty if it names none or, unless `required`, a missing
  /// one. Collective.
  std::filesystem::path resolved(const std::string& ckpt_path, bool required) const;

  /// Loads the weights alone, for an evaluation. Collective.
  void load_weights(const std::filesystem::path& folder);
  /// Loads everything that fit() needs before its loaders are prepared, and makes the optimizers. Collective.
  void load_for_fit(const std::filesystem::path& folder);
  /// Whether load_for_fit() has begun to resume a fit(), until end_resume().
  bool resuming() const noexcept { return resumed_.has_value(); }
  /// Loads the position in the loaders, and what ranks had logged. Requires: the loaders of training are prepared.
  /// Those of validation may be prepared later: their position follows from the progress. Collective.
  void load_progress();
  void end_resume();

 private:
  State trainer_state();
  /// The states of all ranks; a rank whose state equals rank 0's has an empty one. Collective.
  State states_of_ranks();
  void load_foreign();
  void load_lightning(const std::filesystem::path& file);
  void load_position(const State& state);
  std::filesystem::path newest(std::filesystem::file_time_type since) const;

  Run& run_;
  RunLog& log_;
  RunLoaders& loaders_;
  Watchers& watchers_;
  Optimization& optimization_;
  std::optional<OpenedCheckpoint> resumed_;  // checkpoint that fit() is resuming
  State resumed_ranks_;                      // states of the ranks in that checkpoint, until the loaders are prepared
  bool has_fitted_ = false;                  // whether a fit() of this Trainer has begun before
};

}  // namespace muster::trainer
