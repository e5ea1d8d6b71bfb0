#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "muster/data/loader.h"
#include "muster/trainer.h"

namespace muster::testing {

/// One weight w and the loss w * i for batch i: the gradient of a batch is its index. It counts what it sees.
struct CountingModule : TrainerModule {
  explicit CountingModule(int64_t batches = 5, int64_t val_batches = 1) : batches(batches), val_batches(val_batches) {}

  int64_t batches, val_batches;
  torch::Tensor w = register_parameter("w", torch::ones({}));
  std::vector<int64_t> trained = {};          // indices in their epoch
  std::vector<int64_t> validated_after = {};  // batches trained when each validation began
  std::vector<double> rates = {};             // of each training batch
  int64_t train_loads = 0, val_loads = 0, sanity_batches = 0;
  std::function<void(CountingModule&)> on_batch = {};
  std::function<Optimizers(CountingModule&)> make_optimizers = {};

  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    trained.push_back(batch_idx);
    if (!optimizers().empty()) rates.push_back(optimizers()[0].param_groups()[0].options().get_lr());
    if (on_batch) on_batch(*this);
    return w * batch.sum();
  }
  void validation_step(torch::Tensor&, int64_t) { sanity_batches += trainer().sanity_checking(); }
  void on_validation_start() override {
    if (!trainer().sanity_checking()) validated_after.push_back(std::ssize(trained));
  }
  Optimizers configure_optimizers() override {
    if (make_optimizers) return make_optimizers(*this);
    return torch::optim::SGD(parameters(), 0.1);
  }
  static auto numbers(int64_t count) {
    return DataLoader([](int64_t i) { return torch::tensor({static_cast<float>(i)}); }, count);
  }
  auto train_dataloader() { return ++train_loads, numbers(batches); }
  auto val_dataloader() { return ++val_loads, numbers(val_batches); }
};

/// Logs one value of a list per validation as "v"; the last one stays.
struct MeasuredModule : CountingModule {
  explicit MeasuredModule(std::vector<double> values, int64_t batches = 1)
      : CountingModule(batches), values(std::move(values)) {}
  std::vector<double> values;
  size_t next = 0;
  void validation_step(torch::Tensor&, int64_t) { log("v", values[std::min(next++, values.size() - 1)]); }
};

/// Options of a run that writes and shows nothing and makes no sanity check.
inline TrainerOptions quiet(TrainerOptions options) {
  options.enable_checkpointing = options.enable_model_summary = options.enable_progress_bar = false;
  options.num_sanity_val_steps = 0;
  return options;
}

}  // namespace muster::testing
