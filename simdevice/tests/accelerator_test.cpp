// A program of Accelerator or Fabric on one device. Optimizers and norms of the device may round otherwise than the
// CPU's.
#include "muster/accelerator.h"

#include "muster/fabric.h"
#include "simulated.h"

namespace muster::sim {
namespace {

class SimAccelerator : public Simulated {};
namespace F = torch::nn::functional;

struct Rows : torch::data::Dataset<Rows> {
  torch::data::Example<> get(size_t i) override {
    const auto x = torch::sin(torch::arange(6.0F) * static_cast<float>(i + 1));
    return {x, torch::tensor(static_cast<int64_t>(i % 3))};
  }
  std::optional<size_t> size() const override { return 20; }
};

struct NetImpl : torch::nn::Module {
  torch::nn::Linear one{6, 16}, two{16, 3};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({16})};
  NetImpl() {
    register_module("one", one);
    register_module("norm", norm);
    register_module("two", two);
  }
  at::Tensor forward(const at::Tensor& x) { return two(torch::relu(norm(one(x)))); }
};
TORCH_MODULE(Net);

std::vector<at::Tensor> parameters_on_host(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> all;
  for (const auto& p : parameters) all.push_back(p.detach().cpu());
  return all;
}

std::vector<at::Tensor> train(const AcceleratorOptions& options) {
  torch::manual_seed(3);
  Accelerator accelerator(options);
  EXPECT_EQ(accelerator.device().is_cpu(), options.cpu);
  auto [net, batches] = accelerator.prepare(Net(), DataLoader(Rows(), {.batch_size = 4, .shuffle = true}));
  auto optimizer = accelerator.prepare(torch::optim::AdamW(net->parameters(), 1e-2));
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto& [x, y] : batches) {
      optimizer.zero_grad();
      accelerator.backward(F::cross_entropy(net(x), y));
      accelerator.clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
    }
  return parameters_on_host(net->parameters());
}

void expect_equal_under_all_seeds(AcceleratorOptions options) {
  options.cpu = true;
  const auto expected = train(options);
  options.cpu = false;
  std::vector<at::Tensor> first;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    set_seed(seed);
    const auto actual = train(options);
    if (seed == 0) first = actual;
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(testing::difference(actual[i], expected[i], 1e-4, 1e-6), "") << "parameter " << i;
      EXPECT_EQ(difference_in_bits(actual[i], first[i]), "") << "parameter " << i << ", seed " << seed;
    }
  }
}

TEST_F(SimAccelerator, TrainsReplicated) { expect_equal_under_all_seeds({}); }
TEST_F(SimAccelerator, TrainsSharded) { expect_equal_under_all_seeds({.strategy = "fsdp"}); }
TEST_F(SimAccelerator, TrainsWithAShardedOptimizer) { expect_equal_under_all_seeds({.strategy = "zero1"}); }

TEST_F(SimAccelerator, IsFoundByItsName) {
  Fabric fabric({.accelerator = "sim"});
  EXPECT_EQ(fabric.device(), device(0));
}

}  // namespace
}  // namespace muster::sim
