// The program of first_trainer.md: first_trainer [EPOCHS]
#include <memory>
#include <string>

#include <muster/trainer.h>
#include <torch/torch.h>

using Example = torch::data::Example<>;

struct Disc : muster::TrainerModule {
  struct Options {
    double lr = 0.01;
    int64_t width = 32;
  };
  double lr;
  torch::nn::Linear hidden, head;

  explicit Disc(const Options& options) : lr(options.lr), hidden(2, options.width), head(options.width, 2) {
    save_hyperparameters(options);
    register_module("hidden", hidden);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor points) { return head(hidden(points).relu()); }

  torch::Tensor training_step(Example& batch, int64_t) {
    const auto loss = torch::cross_entropy_loss(forward(batch.data), batch.target);
    log("loss", loss, {.prog_bar = true});
    return loss;
  }
  muster::Optimizers configure_optimizers() override { return torch::optim::Adam(parameters(), lr); }

  void validation_step(Example& batch, int64_t) {
    log("accuracy", (forward(batch.data).argmax(1) == batch.target).to(torch::kFloat).mean());
  }

  void on_train_epoch_end() override {
    const auto& metrics = trainer().callback_metrics();
    trainer().print("epoch {}: loss {:.4f}, accuracy {:.3f}", current_epoch(), metrics.at("loss"),
                    metrics.at("accuracy"));
  }
};

static auto points(int64_t count) {
  const auto places = torch::rand({count, 2}) * 2 - 1;
  const auto inside = (places.square().sum(1) < 0.6).to(torch::kLong);
  return muster::DataLoader([places, inside](int64_t i) { return Example(places[i], inside[i]); }, count,
                            {.batch_size = 50, .shuffle = true});
}

int main(int count, char** words) {
  torch::manual_seed(1);
  const auto train = points(4000), held_out = points(1000);

  auto best = std::make_shared<muster::ModelCheckpoint>(
      muster::ModelCheckpointOptions{.mode = "max", .monitor = "accuracy", .save_last = true, .save_top_k = -1});
  auto enough = std::make_shared<muster::EarlyStopping>(
      muster::EarlyStoppingOptions{.mode = "max", .monitor = "accuracy", .stopping_threshold = 0.999});

  muster::Trainer trainer({.callbacks = {best, enough},
                           .default_root_dir = "disc",
                           .logger = {.log_with = {"csv"}},
                           .max_epochs = count > 1 ? std::stoll(words[1]) : 3});
  Disc disc(Disc::Options{.width = 64});
  trainer.fit(disc, train, held_out, {.ckpt_path = "last"});

  const auto kept = muster::load_from_checkpoint<Disc>(best->best_model_path());
  const auto guess = kept->forward(torch::tensor({{0.1F, 0.2F}, {0.9F, -0.9F}})).argmax(1);
  trainer.print("the center: {}, a corner: {}", guess[0].item<int64_t>(), guess[1].item<int64_t>());
}
