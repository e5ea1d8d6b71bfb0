// LSTM and GRU differ from the CPU's by rounding, so runs on an accelerator are compared with each other. cuDNN lets
// their weights refer to memory of its own.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/parallel/sharded_options.h"
#include "on_device/test_device.h"
#include "runtime/device_course.h"

namespace muster::recurrent {
namespace {

struct ReaderImpl : torch::nn::Module {
  torch::nn::Embedding words{register_module("words", torch::nn::Embedding(13, 8))};
  torch::nn::LSTM lstm{register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(8, 12).num_layers(2)))};
  torch::nn::GRU gru{register_module("gru", torch::nn::GRU(torch::nn::GRUOptions(12, 10).bidirectional(true)))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(20, 13))};
  at::Tensor forward(const at::Tensor& x) {
    return out(std::get<0>(gru(std::get<0>(lstm(words(x)))))).flatten(0, 1).to(at::kFloat);
  }
};
TORCH_MODULE(Reader);

struct Way {
  std::string name;
  Strategy strategy;
  std::string precision = "no";
};

/// Every rank has the same batches, so the mean of their gradients is that of one.
testing::Weights train(const Way& way, uint64_t seed) {
  testing::set_order(seed);
  torch::manual_seed(3);
  Accelerator accelerator({.device_backend = testing::on_cuda() ? nullptr : testing::simulated_backend(),
                           .mixed_precision = Precision::parse(way.precision),
                           .strategy = way.strategy});
  EXPECT_EQ(accelerator.device(), testing::test_device(accelerator.local_process_index()));
  const Reader net;
  auto [model, adam] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.02)));
  for (int64_t step = 0; step < 4; ++step) {
    const auto text = (torch::arange(15) * (step + 2) % 13).view({5, 3}).to(accelerator.device());
    const auto next = (text.flatten() + 1).remainder(13);
    accelerator.backward(torch::nn::functional::cross_entropy(model(text), next));
    accelerator.clip_grad_norm_(model, 0.3);
    adam.step();
    adam.zero_grad();
  }
  testing::Weights weights;
  accelerator.summon_full_params(model, [&] {
    for (const auto& entry : net->named_parameters())
      weights.emplace_back(entry.key(), entry.value().detach().cpu().clone());
  });
  return weights;
}

void expect_results(const Way& way, const testing::Weights& expected, uint64_t seed) {
  const auto trained = train(way, seed);
  ASSERT_EQ(trained.size(), expected.size());
  for (size_t i = 0; i < trained.size(); ++i)
    EXPECT_EQ(testing::unexpected_difference(trained[i].second, expected[i].second, way.precision != "no"), "")
        << way.name << ", " << way.precision << ", " << trained[i].first << ", seed " << seed;
  EXPECT_EQ(testing::races(), "");
}

/// Under seed 0 nothing runs late.
TEST(RecurrentOnDevice, HaveTheSameResultsUnderEachStrategyAndSeed) {
  const auto train_on_each = [] {
    for (const char* precision : {"no", "bf16", "16-mixed"}) {
      const auto expected = train({"ddp", "ddp", precision}, 0);
      const uint64_t seeds = std::getenv("MUSTER_TEST_FULL") ? 30 : 3;
      for (uint64_t seed = 0; seed < seeds; ++seed) {
        expect_results({"ddp", "ddp", precision}, expected, seed);
        expect_results({"zero1", FSDP{.stage = ShardStage::optimizer, .unit_min_elements = 60}, precision}, expected,
                       seed);
        expect_results({"zero2", FSDP{.stage = ShardStage::gradients, .unit_min_elements = 60}, precision}, expected,
                       seed);
        expect_results({"fsdp", FSDP{.unit_min_elements = 60}, precision}, expected, seed);
      }
    }
  };
  testing::as_device_ranks(2, train_on_each, std::chrono::minutes(9));  // ThreadSanitizer takes minutes
}

}  // namespace
}  // namespace muster::recurrent
