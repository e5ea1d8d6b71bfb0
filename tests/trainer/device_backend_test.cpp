#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/compare.h"
#include "muster/trainer.h"
#include "runtime/device_course.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using Batch = torch::data::Example<>;

struct TwoLayers : TrainerModule {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(7, 19));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(19, 3));
  torch::Tensor training_step(Batch& batch, int64_t) {
    return (out(torch::tanh(hidden(batch.data))) - batch.target).pow(2).mean();
  }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }
};

std::vector<at::Tensor> fit(bool on_cpu) {
  torch::manual_seed(3);
  auto net = std::make_shared<TwoLayers>();
  std::vector<Batch> rows;
  for (int i = 0; i < 24; ++i)
    rows.emplace_back(torch::cos(torch::arange(7, torch::kFloat) * (i + 1)), torch::sin(torch::arange(3.0F) + i));
  Trainer trainer(testing::quiet({.accelerator = on_cpu ? "cpu" : "auto",
                                  .device_backend = testing::simulated_backend(),
                                  .gradient_clip_val = 0.5,
                                  .max_epochs = 2,
                                  .strategy = "ddp"}));
  trainer.fit(net, DataLoader(rows, {.batch_size = 4}));
  EXPECT_EQ(net->out->weight.device().is_cpu(), on_cpu);
  std::vector<at::Tensor> weights;
  for (const auto& parameter : net->parameters()) weights.push_back(parameter.detach().cpu());
  return weights;
}

TEST(DeviceBackendOption, OfATrainerTrainsAsTheCpuDoes) {
  testing::as_device_ranks(2, [] {
    const auto expected = fit(true);
    for (uint64_t seed = 0; seed < 3; ++seed) {
      sim::set_seed(seed);
      const auto trained = fit(false);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(testing::difference_in_bits(trained[i], expected[i]), "") << seed;
    }
  });
}

}  // namespace
}  // namespace muster
