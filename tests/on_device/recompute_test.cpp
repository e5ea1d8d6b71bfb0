// Activations that a device makes again have the bits of those that it keeps, under any order of its streams. Random
// numbers differ from the CPU's, so runs on the device are compared with each other.
#include <cstdlib>
#include <string>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "graph/recompute_models.h"
#include "graph/region.h"
#include "muster/accelerator.h"
#include "muster/parallel/sharded_options.h"
#include "muster/testing/compare.h"
#include "on_device/test_device.h"
#include "runtime/device_course.h"
#include "runtime/prepared_model.h"

namespace muster::on_device {
namespace {

using Case = testing::RecomputeCase;

struct ReaderImpl : torch::nn::Module {
  torch::nn::TransformerEncoder encoder{register_module(
      "encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                     torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0.1), 3)))};
  at::Tensor forward(const at::Tensor& x) { return encoder(x).mean(1); }
};
TORCH_MODULE(Reader);

/// A part of the forward runs on a stream of its own. Gradients of parameters are made on the usual stream.
struct StreamsImpl : torch::nn::Module {
  torch::nn::Linear one{register_module("one", torch::nn::Linear(16, 16))},
      out{register_module("out", torch::nn::Linear(16, 4))};
  at::Tensor forward(const at::Tensor& x) {
    const c10::impl::VirtualGuardImpl device(x.device().type());
    const auto here = device.getStream(x.device()), side = device.getStreamFromGlobalPool(x.device());
    const auto order = [&](c10::Stream before, c10::Stream after) {
      c10::Event event(device.type());
      event.record(before);
      event.block(after);
    };
    const auto hidden = one(x);
    order(here, side);
    at::Tensor half;
    {
      const c10::StreamGuard on(side);
      half = torch::gelu(torch::tanh(torch::sin(hidden)));
      device.recordDataPtrOnStream(hidden.storage().data_ptr(), side);
    }
    const auto whole = torch::gelu(hidden);
    order(side, here);
    device.recordDataPtrOnStream(half.storage().data_ptr(), here);
    return out(torch::tanh(whole * half));
  }
};
TORCH_MODULE(Streams);

std::vector<std::pair<std::string, std::function<Case()>>> cases() {
  return {{"transformer",
           [] {
             return testing::recompute_case(Reader().ptr(), {5, 4, 16}, {"TransformerEncoderLayer"});
           }},
          {"conv",
           [] {
             return testing::recompute_case(testing::ConvNet().ptr(), {6, 3, 7, 7}, {"ConvBlock"});
           }},
          {"streams", [] {
             return testing::recompute_case(Streams().ptr(), {8, 16}, {"one"});
           }}};
}

std::vector<at::Tensor> train(const std::function<Case()>& make, const Strategy& strategy, const std::string& precision,
                              bool recompute) {
  torch::manual_seed(3);
  auto one = make();
  Accelerator accelerator({.device_backend = testing::on_cuda() ? nullptr : testing::simulated_backend(),
                           .mixed_precision = Precision::parse(precision),
                           .recompute = recompute ? one.options : RecomputeOptions(),
                           .strategy = strategy});
  EXPECT_EQ(accelerator.device(), testing::test_device(accelerator.local_process_index()));
  auto [model, optimizer] = accelerator.prepare(one.module, torch::optim::AdamW(one.module->parameters(), 1e-2));
  std::vector<at::Tensor> left;
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(10 * step + accelerator.process_index());
    const auto x = torch::randn(one.batch).to(accelerator.device());
    const auto loss =
        model.run([&](torch::nn::Module& net) { return one.forward(net, x); }).to(at::kFloat).pow(2).mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    left.push_back(loss.detach());
  }
  for (const auto& [name, value] : model.prepared()->managed->full_state(/*main_only=*/false)) left.push_back(value);
  for (auto& value : left) value = value.cpu();
  return left;
}

void expect_same_bits(int world, const std::vector<Strategy>& strategies) {
  // For the ranks: convolutions of the simulated device sum in another order from time to time if they have threads.
  ::setenv("OMP_NUM_THREADS", "1", 1);
  testing::as_device_ranks(world, [&] {
    for (const auto& [name, make] : cases())
      for (const auto& strategy : strategies)
        for (const auto* precision : {"no", "bf16"})
          for (uint64_t seed = 0; seed < 3; ++seed) {
            SCOPED_TRACE(name + ", " + precision + ", seed " + std::to_string(seed));
            testing::set_order(seed);
            const auto expected = train(make, strategy, precision, false);
            const auto before = graph::replay_counts().replayed;
            const auto actual = train(make, strategy, precision, true);
            EXPECT_GT(graph::replay_counts().replayed, before);
            for (size_t i = 0; i < expected.size(); ++i)
              ASSERT_EQ(testing::difference_in_bits(actual.at(i), expected[i]), "") << "value " << i;
            EXPECT_EQ(testing::races(), "");
          }
  });
}

TEST(RecomputeOnDevice, OfOneRankHasTheSameBits) { expect_same_bits(1, {"auto"}); }
TEST(RecomputeOnDevice, OfTwoRanksHasTheSameBits) {
  expect_same_bits(2, {"ddp", "zero2", FSDP{.unit_min_elements = 60}});
}

}  // namespace
}  // namespace muster::on_device
