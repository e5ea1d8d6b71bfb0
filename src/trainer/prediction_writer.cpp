#include <algorithm>
#include <cstddef>
#include <utility>

#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"

namespace muster {

void PredictionWriter::on_predict_epoch_start(Trainer& trainer, TrainerModule&) {
  const auto loaders = trainer.num_batches(Stage::predict).size();
  predictions_.assign(loaders, {});
  indices_.assign(loaders, {});
}

void PredictionWriter::on_predict_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output,
                                            const BatchView& batch, BatchPlace place) {
  auto indices = trainer.batch_indices();
  if (interval_ != WriteInterval("epoch")) write_on_batch_end(trainer, module, output, indices, batch, place);
  if (interval_ == WriteInterval("batch")) return;
  const auto loader = static_cast<std::size_t>(place.dataloader_idx);
  predictions_.at(loader).push_back(output);
  indices_.at(loader).push_back(std::move(indices));
}

void PredictionWriter::on_predict_epoch_end(Trainer& trainer, TrainerModule& module) {
  if (interval_ != WriteInterval("batch")) write_on_epoch_end(trainer, module, predictions_, indices_);
  predictions_.clear();
  indices_.clear();
}

}  // namespace muster
