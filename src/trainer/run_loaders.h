#pragma once

#include <set>

#include "muster/trainer/detail/combined_loader.h"
#include "muster/trainer/options.h"
#include "muster/tree/state.h"

namespace muster::trainer {

class Run;

/// The prepared loaders of one kind of step.
struct PreparedLoaders {
  CombinedLoader combined = {};
  std::vector<std::shared_ptr<data::LoaderState>> loaders = {};
  bool made = false;
};

/// Batches of this rank in a training epoch; nullopt if it depends on loaders of unknown size.
std::optional<int64_t> batches_in(const PreparedLoaders& prepared);

/// One pass over the batches of training, of one loader or several. Owned by the epoch. Thread safety: one thread at a
/// time.
class TrainingPass {
 public:
  /// `done`: number of batches of this epoch that were returned before; the loaders are then positioned behind them.
  TrainingPass(PreparedLoaders& prepared, int64_t epoch, int64_t done);
  /// The next batch, valid until the next call; nullptr at the end.
  void* next();
  /// Whether the current batch is the last one, as far as that is known.
  bool at_end() const;
  /// The steps for the current batch.
  const StepTable& steps() const;
  /// The index of the current batch's loader; 0 for loaders side by side.
  int64_t loader() const;

 private:
  void* next_in_sequence();
  void* next_side_by_side();
  data::BatchBox* next_of(std::size_t i);

  PreparedLoaders& prepared_;
  std::vector<std::unique_ptr<data::Pass>> passes_;
  std::vector<bool> ended_;
  std::optional<int64_t> length_;
  std::size_t current_ = 0;  // index of the current loader in sequential mode
  int64_t returned_;
};

/// The loaders of a run, each kind made when it is first asked for. Owned by the Core. Thread safety: one thread at a
/// time.
class RunLoaders {
 public:
  using All = std::array<PreparedLoaders, kStepKinds>;
  explicit RunLoaders(Run& run) : run_(run) {}

  /// Begins a run.
  void begin(Stage stage);
  /// Takes the loaders of the last fit() away, while another run has its own.
  All take();
  void put_back(All all) { prepared_ = std::move(all); }

  /// The loaders of this kind. Throws: UsageError (MU444) if there is none.
  PreparedLoaders& of(StepKind kind);
  void forget(StepKind kind);
  /// Makes the training loaders again if the current epoch asks for it; `first_epoch`: the first one of this fit().
  void renew_training(int64_t first_epoch);
  /// Forgets the validation loaders unless they were made for the current epoch or one that shares its loaders.
  void renew_validation();

  /// Number of batches of a training epoch; nullopt: unknown. Makes the loaders.
  std::optional<int64_t> training_batches();
  /// Number of batches of each loader in a pass; nullopt: unknown. Makes the loaders.
  std::vector<std::optional<int64_t>> batches_of_pass(StepKind kind);
  /// Updates of one optimizer in the whole fit(); nullopt: no limit. Throws: UsageError (MU446) outside a run.
  std::optional<int64_t> estimated_stepping_batches();

  /// Moves a batch to the device, by the module's hooks if it has them, and converts its inputs.
  void transfer(const StepTable& steps, void* batch, int64_t loader);

  /// Kinds of loaders that exist and are in checkpoints.
  State::List saved_kinds() const;
  /// A checkpoint is being resumed, until end_resume(); it has loaders of the kinds that set_resumed_kinds() gets.
  void begin_resume() { resumed_kinds_.emplace(); }
  void set_resumed_kinds(State kinds) { resumed_kinds_ = std::move(kinds); }
  void end_resume() { resumed_kinds_.reset(); }
  /// Sets the number of completed batches of the current epoch from the loaders: it depends on the number of ranks.
  void count_batches_done();

 private:
  bool is_saved(StepKind kind) const;
  void note_validation_loaders();

  Run& run_;
  All prepared_;
  std::set<StepKind> saved_kinds_;        // kinds of loaders that exist and are in checkpoints
  std::optional<int64_t> validation_of_;  // epoch in which, or for which, the loaders of validation were made
  std::optional<State> resumed_kinds_;    // kinds of loaders in the checkpoint that fit() resumes; empty: not known yet
};

}  // namespace muster::trainer
