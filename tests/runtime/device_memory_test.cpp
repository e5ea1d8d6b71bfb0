#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/fabric.h"
#include "muster/sim/sim.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

TEST(DeviceMemory, ThatIsFullMakesBatchesSmaller) {
  testing::as_ranks(1, [] {
    sim::install({.bytes_per_device = 1 << 22});
    Accelerator accelerator;
    EXPECT_NE(accelerator.plan().find("memory: sim:0 holds 0 B"), std::string::npos) << accelerator.plan();
    const auto allocate = [&](int64_t size) { (void)torch::ones({size, 1 << 14}, accelerator.device()); };
    const auto found = accelerator.find_executable_batch_size(allocate, {.starting_batch_size = 128});
    EXPECT_GT(found, 32);
    EXPECT_LE(found, 64);
    const auto kept = torch::ones({63, 1 << 14}, accelerator.device());
    const auto message = testing::thrown([&] {
      accelerator.find_executable_batch_size([&](int64_t size) { allocate(size + 1); }, {.starting_batch_size = 2});
    });
    EXPECT_TRUE(message.starts_with("MU185: no batch size fits into memory, not even 1: sim:0 holds 3.9 MiB"))
        << message;
  });
}

TEST(DeviceName, OfALoadedBackendIsTaken) {
  testing::as_ranks(1, [] {
    sim::install({.name = "tpu"});
    Fabric fabric({.accelerator = "tpu"});
    EXPECT_EQ(fabric.device().str(), "tpu:0");
    EXPECT_EQ(fabric.device(), sim::device(0));
    EXPECT_EQ(testing::thrown_id([] { Fabric({.accelerator = "neuron"}); }), "MU497");
    EXPECT_EQ(testing::thrown_id([] { Fabric({.accelerator = "tpu:0,tpu:1"}); }), "MU561");
  });
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

/// Two steps without Muster on the CPU, and two with it there or on the device.
std::vector<at::Tensor> trained_in_two_places(const MakeOptimizer& make, bool optimizer_first, bool on_cpu) {
  torch::manual_seed(4);
  torch::nn::Linear net(8, 8);
  const auto loss_of = [&](const at::Tensor& x) { return net(x).pow(2).mean(); };
  const auto x = torch::cos(torch::arange(32, torch::kFloat)).view({4, 8});
  std::shared_ptr<torch::optim::Optimizer> inner = make(net->parameters());
  for (int step = 0; step < 2; ++step)
    inner->step([&] {
      inner->zero_grad();
      auto loss = loss_of(x);
      loss.backward();
      return loss;
    });
  inner->zero_grad();
  Accelerator accelerator({.cpu = on_cpu});
  Optimizer optimizer;
  Model<torch::nn::LinearImpl> model;
  if (optimizer_first) optimizer = accelerator.prepare(*inner);
  model = accelerator.prepare(net);
  if (!optimizer_first) optimizer = accelerator.prepare(*inner);
  for (int step = 0; step < 2; ++step)
    optimizer.step([&] {
      optimizer.zero_grad();
      auto loss = model(x.to(accelerator.device())).pow(2).mean();
      accelerator.backward(loss);
      return loss;
    });
  return {net->weight.detach().cpu(), net->bias.detach().cpu()};
}

TEST(OptimizerStates, OfStepsBeforePrepareMoveToTheDevice) {
  testing::as_ranks(1, [] {
    sim::install();
    at::set_num_threads(1);
    using namespace torch::optim;
    const std::vector<std::pair<const char*, MakeOptimizer>> all{
        {"sgd", [](auto p) { return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9)); }},
        {"adam", [](auto p) { return std::make_unique<Adam>(p, AdamOptions(0.1).amsgrad(true)); }},
        {"adamw", [](auto p) { return std::make_unique<AdamW>(p, AdamWOptions(0.1)); }},
        {"adagrad", [](auto p) { return std::make_unique<Adagrad>(p, AdagradOptions(0.1)); }},
        {"rmsprop", [](auto p) { return std::make_unique<RMSprop>(p, RMSpropOptions(0.1).momentum(0.5)); }},
        {"lbfgs", [](auto p) { return std::make_unique<LBFGS>(p, LBFGSOptions(0.1).max_iter(3)); }}};
    for (const bool optimizer_first : {false, true})
      for (const auto& [name, make] : all) {
        const auto wanted = trained_in_two_places(make, optimizer_first, true),
                   got = trained_in_two_places(make, optimizer_first, false);
        for (size_t i = 0; i < wanted.size(); ++i)
          EXPECT_TRUE(torch::allclose(got[i], wanted[i], 1e-5, 1e-6))
              << name << ", optimizer first: " << optimizer_first;
      }
  });
}

}  // namespace
}  // namespace muster
