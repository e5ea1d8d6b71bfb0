// The language model of 05_fsdp under the Trainer: nothing in it knows whether it is sharded.
#pragma once

#include <memory>
#include <string>

#include <muster/trainer.h>
#include <torch/torch.h>

#include "../book.h"

struct LanguageModel : muster::TrainerModule {
  struct Options {
    int64_t width = 64;
    bool wrapped = false;
  };
  explicit LanguageModel(const Options& given) : options(given) { save_hyperparameters(given); }
  Options options;
  Reader reader = nullptr;

  void configure_sharded_model() override {  // once for each run, so the reader may be there
    if (!reader) reader = register_module("reader", Reader(options.width, options.wrapped));
  }
  torch::Tensor training_step(torch::Tensor& text, int64_t) {
    const auto loss = reader(text);
    log("loss", loss, {.prog_bar = true});
    return loss;
  }
  void validation_step(torch::Tensor& text, int64_t) { log("val_loss", reader(text)); }
  void on_train_epoch_end() override {
    trainer().print("epoch {}: loss {:.4f} of unseen text", current_epoch(),
                    trainer().callback_metrics().at("val_loss"));
  }
  muster::Optimizers configure_optimizers() override {
    auto adam = std::make_shared<torch::optim::AdamW>(parameters(), 1e-3);
    const auto steps = trainer().estimated_stepping_batches();
    return {adam, muster::LRSchedulerConfig{.interval = "step",
                                            .scheduler = muster::CosineAnnealingLR(*adam, {.T_max = *steps})}};
  }
};

inline void train_language_model(const std::string& file, bool wrapped) {
  const Book book(file);
  const auto windows = [&](int64_t begin, int64_t end) {
    return muster::DataLoader([book, begin](int64_t i) { return book.get(begin + i); }, end - begin,
                              {.batch_size = 4, .shuffle = true});
  };
  const auto unseen = book.size() / 10;
  auto best = std::make_shared<muster::ModelCheckpoint>(
      muster::ModelCheckpointOptions{.dirpath = "language", .monitor = "val_loss"});
  muster::Trainer trainer({.callbacks = {best}, .gradient_clip_val = 1.0, .max_epochs = 3});
  LanguageModel model({.wrapped = wrapped});
  trainer.fit(model, windows(unseen, book.size()), windows(0, unseen));
}
