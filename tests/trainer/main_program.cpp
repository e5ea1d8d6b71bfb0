// A program of one line, and, as `by_hand FOLDER RANKS`, what it is instead of.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "muster/data/loader.h"
#include "muster/trainer_main.h"

namespace {

/// Every bit of the tensors in one number (FNV-1a).
uint64_t digest(const std::vector<torch::Tensor>& tensors) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const auto& tensor : tensors) {
    const auto bytes = tensor.detach().contiguous();
    const auto* at = static_cast<const unsigned char*>(bytes.data_ptr());
    for (size_t i = 0; i < bytes.nbytes(); ++i) hash = (hash ^ at[i]) * 0x100000001b3U;
  }
  return hash;
}

struct Lit : muster::TrainerModule {
  struct Options {
    std::string fail = {};
    double rate = 0.05;
    int64_t width = 8;
  };
  explicit Lit(const Options& given) : options(given) {
    save_hyperparameters(given);
    hidden = register_module("hidden", torch::nn::Linear(4, given.width));
    out = register_module("out", torch::nn::Linear(given.width, 1));
  }

  torch::Tensor forward(torch::Tensor x) { return out(torch::dropout(torch::tanh(hidden(x)), 0.1, is_training())); }
  torch::Tensor loss(torch::data::Example<>& batch) { return torch::mse_loss(forward(batch.data), batch.target); }

  torch::Tensor training_step(torch::data::Example<>& batch, int64_t) {
    if (options.fail == "step") throw std::runtime_error("a step failed");
    return loss(batch);
  }
  void validation_step(torch::data::Example<>& batch, int64_t) { log("val_loss", loss(batch)); }
  void test_step(torch::data::Example<>& batch, int64_t) { log("test_loss", loss(batch)); }
  torch::Tensor predict_step(torch::data::Example<>& batch, int64_t) { return forward(batch.data); }
  void on_predict_end() override { trainer().print("predicted {}", options.width); }
  void on_fit_end() override {
    trainer().print("{} ranks, {} steps, weights {}", trainer().runtime().world_size(), global_step(),
                    std::to_string(digest(parameters())));
  }
  muster::Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), options.rate); }

  Options options;
  torch::nn::Linear hidden = nullptr, out = nullptr;
};

struct Data : muster::DataModule {
  struct Options {
    int64_t batch_size = 4;
    int rows = 32;
  };
  explicit Data(const Options& given) : options(given) {
    for (int i = 0; i < given.rows; ++i) rows.emplace_back(torch::randn({4}), torch::randn({1}));
  }
  auto loader(bool shuffle) {
    return muster::DataLoader(rows, {.batch_size = options.batch_size, .seed = 3, .shuffle = shuffle});
  }
  auto train_dataloader() { return loader(true); }
  auto val_dataloader() { return loader(false); }
  auto test_dataloader() { return loader(false); }
  auto predict_dataloader() { return loader(false); }

  Options options;
  std::vector<torch::data::Example<>> rows;
};

muster::TrainerOptions quiet() {
  return {.enable_model_summary = false, .enable_progress_bar = false, .max_epochs = 2};
}

void train_by_hand(const std::string& folder, int ranks) {
  auto options = quiet();
  options.default_root_dir = folder;
  options.max_epochs = 3;
  if (ranks > 0) options.devices = ranks;
  muster::Trainer trainer(options);
  torch::manual_seed(5);
  Lit lit({.rate = 0.1, .width = 6});
  Data data({.batch_size = 2});
  trainer.fit(lit, data);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "by_hand") == 0) {
    train_by_hand(argv[2], std::atoi(argv[3]));
    return 0;
  }
  return muster::trainer_main<Lit, Data>(argc, argv, quiet());
}
