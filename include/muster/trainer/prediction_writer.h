#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "muster/base/word.h"
#include "muster/trainer/callback.h"

namespace muster {

namespace trainer {
struct WriteIntervalWords {
  static constexpr std::string_view kAll[] = {"batch", "epoch", "batch_and_epoch"};
};
}  // namespace trainer

using WriteInterval = Word<trainer::WriteIntervalWords>;

/// Base class of callbacks that write the predictions of predict(): override one or both of the write functions. Every
/// rank writes its own predictions; with EvaluateOptions::return_predictions = false, predict() keeps none.
class PredictionWriter : public Callback {
 public:
  using Indices = std::vector<int64_t>;
  explicit PredictionWriter(WriteInterval write_interval = "batch") : interval_(write_interval) {}

  /// Called after each batch. `batch_indices`: the dataset indices of its samples; for a stream, their positions.
  virtual void write_on_batch_end(Trainer&, TrainerModule&, const StepOutput& /*prediction*/,
                                  const Indices& /*batch_indices*/, const BatchView&, BatchPlace) {}
  /// Called at the end, with the predictions and indices of each loader's batches.
  virtual void write_on_epoch_end(Trainer&, TrainerModule&, const std::vector<std::vector<StepOutput>>& /*predictions*/,
                                  const std::vector<std::vector<Indices>>& /*batch_indices*/) {}

  void on_predict_epoch_start(Trainer& trainer, TrainerModule& module) override;
  void on_predict_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output, const BatchView& batch,
                            BatchPlace place) override;
  void on_predict_epoch_end(Trainer& trainer, TrainerModule& module) override;

 private:
  WriteInterval interval_;
  std::vector<std::vector<StepOutput>> predictions_;
  std::vector<std::vector<Indices>> indices_;
};

}  // namespace muster
