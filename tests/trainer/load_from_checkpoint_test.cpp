#include "muster/trainer/load_from_checkpoint.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "muster/trainer.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster::loaded {

struct Sizes {
  int64_t in = 3, out = 2;
};

struct Adjustable : TrainerModule {
  struct Options {
    std::optional<double> decay = {};
    std::string name = "none";
    double rate = 0.1;
    Sizes sizes = {};
    bool smooth = false;
    std::vector<int64_t> steps = {};
  };
  explicit Adjustable(const Options& given) : options(given) {
    save_hyperparameters(given);
    layer = register_module("layer", torch::nn::Linear(given.sizes.in, given.sizes.out));
  }
  Options options;
  torch::nn::Linear layer{nullptr};
  torch::Tensor training_step(torch::Tensor& batch, int64_t) { return layer(batch).square().mean(); }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), options.rate); }
};

auto rows(int64_t width) {
  return DataLoader([width](int64_t i) { return torch::full({width}, static_cast<double>(i)); }, 4);
}

TEST(LoadFromCheckpoint, AModuleIsMadeOfItsOptionsAndWeights) {
  const testing::TemporaryFolder folder;
  Adjustable module({.decay = 0.5, .name = "mine", .sizes = {.in = 4, .out = 5}, .smooth = true, .steps = {3, 4}});
  Trainer trainer(testing::quiet({.max_epochs = 1}));
  trainer.fit(module, rows(4));
  trainer.save_checkpoint(folder.path() / "saved");
  const auto loaded = load_from_checkpoint<Adjustable>(folder.path() / "saved",
                                                       [](Adjustable::Options& options) { options.rate = 0.7; });
  EXPECT_EQ(loaded->options.decay, 0.5);
  EXPECT_EQ(loaded->options.name, "mine");
  EXPECT_EQ(loaded->options.rate, 0.7);
  EXPECT_EQ(loaded->options.sizes.out, 5);
  EXPECT_TRUE(loaded->options.smooth);
  EXPECT_EQ(loaded->options.steps, (std::vector<int64_t>{3, 4}));
  EXPECT_TRUE(loaded->layer->weight.equal(module.layer->weight));
  EXPECT_EQ(module.hyperparameters().at("sizes").at("in").integer(), 4);
}

TEST(LoadFromCheckpoint, ShardedWeightsAreReadWhole) {
  const testing::InheritedFolder folder;
  testing::as_ranks(2, [&] {
    torch::manual_seed(1);
    Adjustable module({.sizes = {.in = 4, .out = 5}});
    Trainer trainer(testing::quiet({.max_epochs = 1, .strategy = "fsdp"}));
    trainer.fit(module, rows(4));
    trainer.save_checkpoint(folder.path() / "saved");
    trainer.save_checkpoint(folder.path() / "weights", {.weights_only = true});
    const auto whole = load_from_checkpoint<Adjustable>(folder.path() / "saved");
    Adjustable other({.sizes = {.in = 4, .out = 5}});
    trainer::load_weights(other, folder.path() / "weights");
    EXPECT_EQ(whole->layer->weight.sizes(), (std::vector<int64_t>{5, 4}));
    EXPECT_TRUE(whole->layer->weight.equal(other.layer->weight));
  });
}

TEST(LoadFromCheckpoint, WithoutHyperparametersAModuleWithOptionsCannotBeMade) {  // MU465
  const testing::TemporaryFolder folder;
  testing::CountingModule module(2);
  Trainer trainer(testing::quiet({.max_epochs = 1}));
  trainer.fit(module);
  trainer.save_checkpoint(folder.path() / "saved");
  EXPECT_EQ(testing::thrown_id([&] { load_from_checkpoint<Adjustable>(folder.path() / "saved"); }), "MU465");
  EXPECT_EQ(load_from_checkpoint<testing::CountingModule>(folder.path() / "saved")->w.item<float>(),
            module.w.item<float>());
}

}  // namespace muster::loaded
