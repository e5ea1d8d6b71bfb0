#include <muster/trainer_main.h>
#include <torch/torch.h>

#include "../digits.h"

namespace F = torch::nn::functional;

struct Classifier : muster::TrainerModule {
  struct Options {
    double lr = 1e-3;
    double weight_decay = 0.01;
  };
  explicit Classifier(const Options& given) : options(given) { save_hyperparameters(given); }

  torch::Tensor training_step(torch::data::Example<>& batch, int64_t) {
    const auto loss = F::cross_entropy(net(batch.data), batch.target);
    log("loss", loss);
    return loss;
  }
  void validation_step(torch::data::Example<>& batch, int64_t) {
    log("accuracy", (net(batch.data).argmax(1) == batch.target).to(torch::kFloat).mean());
  }
  void on_train_epoch_end() override {
    trainer().print("epoch {}: loss {:.4f}", current_epoch(), trainer().callback_metrics().at("loss"));
  }
  muster::Optimizers configure_optimizers() override {
    return torch::optim::AdamW(parameters(), torch::optim::AdamWOptions(options.lr).weight_decay(options.weight_decay));
  }

  Options options;
  DigitNet net = register_module("net", DigitNet());
};

struct DigitData : muster::DataModule {
  struct Options {
    int64_t batch_size = 64;
  };
  explicit DigitData(const Options& given) : options(given) {}

  auto train_dataloader() {
    return muster::DataLoader(Digits(Digits::Part::train), {.batch_size = options.batch_size, .shuffle = true});
  }
  auto val_dataloader() { return muster::DataLoader(Digits(Digits::Part::test), {.batch_size = options.batch_size}); }

  Options options;
};

int main(int argc, char** argv) { return muster::trainer_main<Classifier, DigitData>(argc, argv); }
