#pragma once

#include "hooks.h"
#include "muster/runtime.h"
#include "muster/trainer/batch.h"
#include "muster/trainer/detail/run_inputs.h"
#include "muster/trainer/options.h"
#include "preparation.h"
#include "votes.h"

namespace muster::trainer {

// Why: docs/decisions/0107-what-resuming-continues.md.

/// The position of a run between two batches. A checkpoint stores it to say what remains to do before the next batch.
enum class SavePoint : std::uint8_t {
  none,            ///< nothing remains
  in_batch,        ///< inside a batch, which cannot be continued
  batch_hooks,     ///< everything after the hooks at the end of the batch
  batch_end,       ///< callbacks that save after the batch, then what batch_done has
  batch_done,      ///< a validation, if one is due
  in_validation,   ///< the rest of a validation
  validation_end,  ///< callbacks that save after the validation
  epoch_hooks,     ///< everything after the hooks at the end of the epoch
  epoch_end        ///< callbacks that save after the epoch
};

/// Names of the SavePoints in checkpoints.
inline constexpr std::array<std::string_view, 9> kSavePoints = {"none",           "in batch",    "batch hooks",
                                                                "batch end",      "batch done",  "in validation",
                                                                "validation end", "epoch hooks", "epoch end"};

/// The position of training, which checkpoints store.
struct Progress {
  int64_t batches = 0;      ///< completed batches of the current epoch
  int64_t epoch = 0;        ///< number of the current epoch, from 0
  bool epoch_done = false;  ///< the current epoch is complete except for its last hooks
  int64_t global_step = 0;  ///< number of updates of all optimizers
  bool last_batch = false;  ///< the batch completed last is the last of its epoch
  SavePoint point = SavePoint::none;
  int64_t total_batches = 0;
  BatchPlace validation = {};  ///< next batch of a validation
};

/// Measures how long fit() has run, and the time since the last validation. Thread safety: one thread at a time.
class RunClock {
 public:
  using Clock = std::chrono::steady_clock;
  using Span = std::chrono::milliseconds;

  /// Starts the clock of fit(). `earlier`: running time before the checkpoint from which it resumes.
  void begin(Span earlier = {}) { began_ = validated_ = Clock::now(), earlier_ = earlier; }
  void note_validation() { validated_ = Clock::now(); }
  Span elapsed() const { return earlier_ + std::chrono::duration_cast<Span>(Clock::now() - began_); }
  Span since_validation() const { return std::chrono::duration_cast<Span>(Clock::now() - validated_); }

 private:
  Clock::time_point began_ = {}, validated_ = {};
  Span earlier_ = {};
};

/// What a fit() is doing. A run of another stage stays in `setup`.
///
///   phase         entered by
///   setup         Run::enter(), the end of the sanity check, Run::leave()
///   sanity_check  the validation steps before training
///   training      the end of loading, in a fit() that trains
enum class Phase : std::uint8_t { setup, sanity_check, training };

/// The state of a Trainer's runs: what they are made with, and how far the current or last one is. Owned by the Core;
/// the loops read it and move its progress on. Thread safety: one thread at a time.
class Run {
 public:
  /// Starts the other local ranks if the options ask for them. Collective. Throws: ConfigError (MU440) with everything
  /// that is wrong with the options.
  Run(Trainer& trainer, const TrainerOptions& options);

  /// Begins a run of this module and data.
  void enter(RunInputs inputs, Stage stage);
  void leave();
  /// The stage of the current run; nullopt outside of runs.
  const std::optional<Stage>& stage() const noexcept { return stage_; }
  bool is_fit() const noexcept { return stage_ == Stage::fit; }
  void set_phase(Phase phase) noexcept { phase_ = phase; }
  bool sanity_checking() const noexcept { return phase_ == Phase::sanity_check; }
  /// Whether a fit() is past its sanity check and has loaded everything.
  bool is_training() const noexcept { return is_fit() && phase_ == Phase::training; }
  const RunInputs& inputs() const noexcept { return inputs_; }
  TrainerModule& module() const noexcept { return *inputs_.module; }

  /// Updates of all optimizers. The host waits if the last one is not known yet, as on a device under loss scaling.
  int64_t global_step() { return preparation->wait_for_steps(), progress.global_step; }
  /// Whether fit() validates.
  bool validates() const;
  /// Whether fit() validates in the current epoch.
  bool validates_in_epoch() const;

  /// Records whether an exception other than Terminated ends the run.
  void set_failed(bool failed) noexcept { failed_ = failed; }
  /// Whether a checkpoint that is saved now could not be resumed bit-exactly.
  bool inside_batch() const noexcept;

  /// Keeps the modes of all submodules for checkpoints, while an evaluation changes them.
  void keep_modes() { kept_modes_ = modes_now(); }
  void forget_modes() { kept_modes_.clear(); }
  /// The modes that are kept, or else those of now: one letter for each submodule.
  std::string modes() const { return kept_modes_.empty() ? modes_now() : kept_modes_; }
  /// Sets the mode of every submodule, unless the modes belong to another module.
  void load_modes(const std::string& modes);

  Trainer& trainer;
  TrainerOptions options;
  Runtime runtime;
  HookCalls hooks;
  Progress progress;
  StopVote stop{runtime};
  RunClock clock;
  const std::shared_ptr<Preparation> preparation = std::make_shared<Preparation>();

 private:
  std::string modes_now() const;

  RunInputs inputs_;
  std::optional<Stage> stage_;
  Phase phase_ = Phase::setup;
  bool failed_ = false;     // whether an exception other than Terminated ends the run
  std::string kept_modes_;  // modes of the submodules, while an evaluation changes them
};

}  // namespace muster::trainer
