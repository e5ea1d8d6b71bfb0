#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "runtime/ranks.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

/// One way to train.
struct Case {
  int accumulate = 1;
  std::optional<double> clip = {};
  std::string name = {};
  Precision precision = "32-true";
};
const Case kPlain{.name = "plain"};
const Case kAccumulation{.accumulate = 3, .name = "accumulation"};
const Case kClipping{.clip = 0.1, .name = "clipping"};
const Case kBoth{.accumulate = 2, .clip = 0.1, .name = "accumulation and clipping"};
const Case kHalf{.name = "loss scaling", .precision = "16-mixed"};
const Case kAll{.accumulate = 2, .clip = 0.1, .name = "all", .precision = "16-mixed"};

/// Losses overflow at first, so that steps are skipped, and the scale grows again.
constexpr GradScalerOptions kScaler{.growth_interval = 5, .init_scale = 1U << 30U};

using Batch = torch::data::Example<>;

/// Rows of 36 numbers become 3.
struct Trained : TrainerModule {
  virtual torch::Tensor forward(torch::Tensor x) = 0;
  torch::Tensor loss(const Batch& batch) { return torch::mse_loss(forward(batch.data), batch.target); }
  torch::Tensor training_step(Batch& batch, int64_t) { return loss(batch); }
  Optimizers configure_optimizers() override { return torch::optim::AdamW(parameters(), 0.01); }
};

struct Mlp : Trained {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(36, 12));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(12, 3));
  torch::Tensor forward(torch::Tensor x) override { return out(torch::tanh(hidden(x))); }
};

struct Cnn : Trained {
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(1, 4, 3));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(4));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(4 * 4 * 4, 3));
  torch::Tensor forward(torch::Tensor x) override {
    return out(torch::relu(norm(conv(x.view({-1, 1, 6, 6})))).flatten(1));
  }
};

/// With dropout, whose random numbers must be the same, too.
struct Transformer : Trained {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(6, 8));
  torch::nn::TransformerEncoderLayer block =
      register_module("block", torch::nn::TransformerEncoderLayer(
                                   torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.1)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(8, 3));
  torch::Tensor forward(torch::Tensor x) override { return out(block(in(x.view({-1, 6, 6}).transpose(0, 1))).mean(0)); }
};

auto points() {
  torch::manual_seed(7);
  std::vector<Batch> all;
  for (int i = 0; i < 50; ++i) all.emplace_back(torch::randn({36}), torch::randn({3}));
  return DataLoader(all, {.batch_size = 4, .seed = 11, .shuffle = true});
}

template <class Net>
std::shared_ptr<Net> seeded() {
  torch::manual_seed(3);
  return std::make_shared<Net>();
}

template <class R>
std::vector<torch::Tensor> full_parameters(const R& runtime, const Model<torch::nn::Module>& model) {
  std::vector<torch::Tensor> copies;
  runtime.summon_full_params(model, [&] {
    for (const auto& parameter : model.parameters()) copies.push_back(parameter.detach().clone());
  });
  return copies;
}

template <class Net>
std::vector<torch::Tensor> by_accelerator(const Case& one, const Strategy& strategy) {
  Accelerator accelerator({.grad_scaler = kScaler,
                           .gradient_accumulation_steps = one.accumulate,
                           .mixed_precision = one.precision,
                           .strategy = strategy});
  auto net = seeded<Net>();
  auto prepared = accelerator.prepare(net, points());
  auto& [model, batches] = prepared;
  torch::optim::AdamW adam(net->parameters(), 0.01);
  auto optimizer = accelerator.prepare(adam);
  const auto step = [&](const Batch& batch) {
    accelerator.backward(model.run(&Net::loss, batch));
    if (one.clip) accelerator.clip_grad_norm_(model, *one.clip);
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int epoch = 0; epoch < 3; ++epoch)
    for (auto& batch : batches) {
      if (one.accumulate == 1) {
        step(batch);
        continue;
      }
      const auto window = accelerator.accumulate(model);
      step(batch);
    }
  return full_parameters(accelerator, Model<torch::nn::Module>(net, model.prepared()));
}

template <class Net>
std::vector<torch::Tensor> by_trainer(const Case& one, const Strategy& strategy) {
  auto net = seeded<Net>();
  Trainer trainer(testing::quiet({.accumulate_grad_batches = one.accumulate,
                                  .grad_scaler = kScaler,
                                  .gradient_clip_val = one.clip,
                                  .max_epochs = 3,
                                  .precision = one.precision,
                                  .strategy = strategy}));
  trainer.fit(net, points());
  return full_parameters(trainer.runtime(), trainer.model());
}

template <class Net>
void expect_same_bits(const Strategy& strategy, const std::vector<Case>& cases) {
  for (const auto& one : cases) {
    const auto wanted = by_accelerator<Net>(one, strategy), given = by_trainer<Net>(one, strategy);
    ASSERT_EQ(given.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(given[i].equal(wanted[i])) << strategy.name() << ", " << one.name << ", parameter " << i;
  }
}

void expect_same_bits(const Strategy& strategy) {
  expect_same_bits<Mlp>(strategy, {kPlain, kAccumulation, kClipping, kBoth, kHalf, kAll});
  expect_same_bits<Cnn>(strategy, {kPlain, kBoth, kAll});
  expect_same_bits<Transformer>(strategy, {kPlain, kBoth, kAll});
}

TEST(SameBits, TrainerTrainsAsTheLoopUnderAccelerator) { expect_same_bits("auto"); }

TEST(SameBits, AlsoOnTwoRanks) {
  testing::as_ranks(2, [] {
    const Accelerator keeps_the_meeting_place;
    expect_same_bits("ddp");
    expect_same_bits("fsdp");
  });
}

}  // namespace
}  // namespace muster
