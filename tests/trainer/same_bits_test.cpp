#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/runtime/extras.h"
#include "runtime/ranks.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

/// One way to train.
struct Case {
  int accumulate = 1;
  std::optional<double> clip = {};
  std::string name = {};
};

struct Mlp : TrainerModule {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(6, 12));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(12, 3));
  torch::Tensor forward(torch::Tensor x) { return out(torch::tanh(hidden(x))); }
  torch::Tensor loss(const torch::data::Example<>& batch) {
    return torch::nn::functional::mse_loss(forward(batch.data), batch.target);
  }
  torch::Tensor training_step(torch::data::Example<>& batch, int64_t) { return loss(batch); }
  Optimizers configure_optimizers() override { return torch::optim::AdamW(parameters(), 0.01); }
};

auto points() {
  torch::manual_seed(7);
  std::vector<torch::data::Example<>> all;
  for (int i = 0; i < 50; ++i) all.emplace_back(torch::randn({6}), torch::randn({3}));
  return DataLoader(all, {.batch_size = 4, .seed = 11, .shuffle = true});
}

std::shared_ptr<Mlp> seeded() {
  torch::manual_seed(3);
  return std::make_shared<Mlp>();
}

template <class R>
std::vector<torch::Tensor> full_parameters(const R& runtime, const Model<torch::nn::Module>& model) {
  std::vector<torch::Tensor> copies;
  runtime.summon_full_params(model, [&] {
    for (const auto& parameter : model.parameters()) copies.push_back(parameter.detach().clone());
  });
  return copies;
}

std::vector<torch::Tensor> by_accelerator(const Case& one, const Strategy& strategy) {
  Accelerator accelerator({.gradient_accumulation_steps = one.accumulate, .strategy = strategy});
  auto mlp = seeded();
  auto prepared = accelerator.prepare(mlp, points());
  auto& [model, batches] = prepared;
  torch::optim::AdamW adam(mlp->parameters(), 0.01);
  auto optimizer = accelerator.prepare(adam);
  const auto step = [&](const torch::data::Example<>& batch) {
    accelerator.backward(model.run(&Mlp::loss, batch));
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
  return full_parameters(accelerator, Model<torch::nn::Module>(mlp, model.prepared()));
}

std::vector<torch::Tensor> by_trainer(const Case& one, const Strategy& strategy) {
  auto mlp = seeded();
  Trainer trainer(testing::quiet({.accumulate_grad_batches = one.accumulate,
                                  .gradient_clip_val = one.clip,
                                  .max_epochs = 3,
                                  .strategy = strategy}));
  trainer.fit(mlp, points());
  return full_parameters(trainer.runtime(), trainer.model());
}

void expect_same_bits(const Strategy& strategy, const std::string& name) {
  for (const Case& one :
       {Case{.accumulate = 1, .name = "plain"}, Case{.accumulate = 3, .name = "accumulation"},
        Case{.accumulate = 1, .clip = 0.1, .name = "clipping"}, Case{.accumulate = 2, .clip = 0.1, .name = "both"}}) {
    const auto wanted = by_accelerator(one, strategy), given = by_trainer(one, strategy);
    ASSERT_EQ(given.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(given[i].equal(wanted[i])) << name << ", " << one.name << ", parameter " << i;
  }
}

TEST(SameBits, TrainerTrainsAsTheLoopUnderAccelerator) { expect_same_bits("auto", "one rank"); }

TEST(SameBits, AlsoOnTwoRanks) {
  testing::as_ranks(2, [] {
    const Accelerator keeps_the_meeting_place;
    expect_same_bits("ddp", "ddp");
    expect_same_bits("fsdp", "fsdp");
  });
}

}  // namespace
}  // namespace muster
