#include <muster/trainer.h>
#include <torch/torch.h>

#include "../digits.h"

namespace F = torch::nn::functional;

struct Classifier : muster::TrainerModule {
  DigitNet net = register_module("net", DigitNet());

  torch::Tensor training_step(torch::data::Example<>& batch, int64_t) {
    const auto loss = F::cross_entropy(net(batch.data), batch.target);
    log("loss", loss);
    return loss;
  }
  void validation_step(torch::data::Example<>& batch, int64_t) {
    log("accuracy", (net(batch.data).argmax(1) == batch.target).to(torch::kFloat).mean());
  }
  void on_train_epoch_end() override {
    const auto& metrics = trainer().callback_metrics();
    trainer().print("epoch {}: loss {:.4f}, accuracy {:.3f}", current_epoch(), metrics.at("loss"),
                    metrics.at("accuracy"));
  }
  muster::Optimizers configure_optimizers() override { return torch::optim::AdamW(parameters(), 1e-3); }
};

int main() {
  torch::manual_seed(1);
  Classifier classifier;
  muster::DataLoader train(Digits(Digits::Part::train), {.batch_size = 64, .shuffle = true});
  muster::DataLoader held_out(Digits(Digits::Part::test), {.batch_size = 64});
  auto best = std::make_shared<muster::ModelCheckpoint>(
      muster::ModelCheckpointOptions{.dirpath = "digits", .mode = "max", .monitor = "accuracy"});
  muster::Trainer trainer({.callbacks = {best}, .max_epochs = 3});
  trainer.fit(classifier, train, held_out);
}
