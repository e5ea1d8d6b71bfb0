#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "muster/trainer/detail/combined_loader.h"

namespace muster::trainer {

/// The prepared loaders of one kind of step.
struct PreparedLoaders {
  CombinedLoader combined = {};
  std::vector<std::shared_ptr<data::LoaderState>> loaders = {};
  bool made = false;
};

/// Batches of this rank in a training epoch; nullopt if it depends on loaders of unknown size.
std::optional<int64_t> batches_in(const PreparedLoaders& prepared);

/// One pass over the batches of training, of one loader or several. Thread safety: one thread at a time.
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

}  // namespace muster::trainer
