#include <gtest/gtest.h>
#include <torch/torch.h>

#include "graph/region.h"
#include "muster/parallel/wrap.h"
#include "muster/testing/compare.h"
#include "muster/trainer.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

/// Lightning's sample of activation checkpointing: layers that are wrapped where they are made.
struct Blocks : TrainerModule {
  std::vector<torch::nn::Sequential> block;
  torch::nn::Linear head = nullptr;

  void configure_sharded_model() override {
    if (head) return;
    for (int i = 0; i < 3; ++i) {
      torch::nn::Sequential layer(torch::nn::Linear(32, 32), torch::nn::GELU(), torch::nn::Dropout(0.1));
      block.push_back(muster::wrap(layer));
      register_module("block" + std::to_string(i), block.back());
    }
    head = register_module("head", torch::nn::Linear(32, 1));
  }
  torch::Tensor training_step(torch::Tensor& x, int64_t) {
    auto y = x;
    for (auto& layer : block) y = layer->forward(y);
    return head(y).pow(2).mean();
  }
  Optimizers configure_optimizers() override { return torch::optim::AdamW(parameters(), 1e-2); }
};

/// What training leaves of the parameters, and how many regions were replayed.
std::pair<std::vector<at::Tensor>, int64_t> train(const FSDP& sharding) {
  torch::manual_seed(6);
  Blocks model;
  auto options = testing::quiet({.max_epochs = 2});
  options.strategy = sharding;
  Trainer trainer(options);
  std::vector<at::Tensor> samples;
  for (int i = 0; i < 8; ++i) samples.push_back(torch::randn(32));
  const auto before = graph::replay_counts().replays;
  trainer.fit(model, DataLoader(samples, {.batch_size = 2}));
  std::vector<at::Tensor> left;
  for (const auto& [name, value] : trainer.model().prepared()->managed->full_state(/*main_only=*/false))
    left.push_back(value);
  return {left, graph::replay_counts().replays - before};
}

TEST(TrainerRecompute, LightningsSampleRunsAsWrittenThere) {
  testing::as_ranks(2, [] {
    const auto [expected, none] = train({});
    EXPECT_EQ(none, 0);
    const std::vector<FSDP> ways{{.activation_checkpointing = true},
                                 {.activation_checkpointing = typeid(torch::nn::SequentialImpl)},
                                 {.activation_checkpointing = {typeid(torch::nn::SequentialImpl)}},
                                 {.activation_checkpointing = std::vector<std::string>{"block0", "block2"}}};
    for (const auto& way : ways) {
      const auto [actual, replays] = train(way);
      EXPECT_GT(replays, 0);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(testing::difference_in_bits(actual.at(i), expected[i]), "") << i;
    }
  });
}

}  // namespace
}  // namespace muster
