// The code of trainer_loops.md.
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <utility>

#include <muster/data/combined.h>
#include <muster/trainer.h>
#include <torch/torch.h>

using Example = torch::data::Example<>;

static void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

static auto points(int64_t count) {
  std::vector<Example> all;
  for (int64_t i = 0; i < count; ++i)
    all.emplace_back(torch::sin(torch::arange(4, torch::kFloat) + i), torch::tensor(i % 2));
  return muster::DataLoader(all, {.batch_size = 4});
}

struct Net : muster::TrainerModule {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 2));
  muster::Accuracy accuracy;

  torch::Tensor loss(const Example& batch) {
    return torch::nn::functional::cross_entropy(layer(batch.data), batch.target);
  }
  torch::Tensor training_step(Example& batch, int64_t) { return loss(batch); }
  void validation_step(Example& batch, int64_t) {
    accuracy.update(layer(batch.data), batch.target);
    log("accuracy", accuracy);
  }
  muster::Optimizers configure_optimizers() override {
    const auto steps = trainer().estimated_stepping_batches();
    trainer().print("{} updates", steps.value_or(-1));
    return torch::optim::SGD(parameters(), 0.1);
  }
};

struct TwoSources : Net {
  torch::Tensor training_step(std::tuple<Example&, Example&>& batches, int64_t) {
    auto& [clean, noisy] = batches;
    return loss(clean) + 0.1 * loss(noisy);
  }
};

int main() {
  torch::manual_seed(1);
  muster::Trainer trainer({.enable_checkpointing = false,
                           .max_epochs = 3,
                           .max_time = "00:12:00:00",
                           .min_epochs = 1,
                           .val_check_interval = 0.5});
  Net net;
  trainer.fit(net, points(32), points(9));
  require(trainer.callback_metrics().contains("accuracy"), "the metric has a value");

  muster::Trainer two({.enable_checkpointing = false, .max_epochs = 1});
  TwoSources module;
  auto side_by_side = muster::combine(muster::CombineMode::min_size, points(32), points(16));
  two.fit(module, std::move(side_by_side), points(9));
  if (trainer.runtime().is_main()) std::puts("1 passed, 0 failed, 0 skipped");
}
