// What only one of Accelerator and Fabric had before: each function and option here works in the other one too.
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/base/error.h"
#include "muster/data/sample_split.h"
#include "muster/fabric.h"
#include "muster/runtime/callback.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/saved_net.h"
#include "runtime/temporary_folder.h"

namespace muster::both_apis {
namespace {

using saving::Numbers;
using saving::SavedNet;
using testing::as_ranks;

torch::Tensor row(int64_t number) { return torch::sin(torch::arange(3, torch::kFloat) + number).view({1, 3}); }

SavedNet net_of(uint64_t seed) {
  torch::manual_seed(seed);
  return SavedNet();
}

/// Makes two updates of two micro-batches each.
template <class Api, class Handles>
void train(Api& api, Handles& handles) {
  auto& [model, optimizer, scheduler, batches] = handles;
  for (auto& numbers : batches) {
    auto window = api.accumulate(model);
    api.backward(model(row(numbers[0].template item<int64_t>())).square().mean());
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }
}

constexpr DataLoaderOptions kBatches{.batch_size = 3};

/// What training leaves behind.
struct Result {
  Result(SavedNet net, torch::optim::Optimizer& optimizer)
      : parameters(net->parameters()), rate(optimizer.param_groups()[0].options().get_lr()) {}
  std::vector<at::Tensor> parameters;
  double rate;
};

Result by_accelerator() {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto net = net_of(1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto handles = accelerator.prepare(net, sgd, ExponentialLR(sgd, {.gamma = 0.5}), DataLoader(Numbers(), kBatches));
  train(accelerator, handles);
  return {net, sgd};
}

Result by_fabric() {
  Fabric fabric({.gradient_accumulation = {.num_steps = 2}});
  EXPECT_EQ(fabric.gradient_accumulation_steps(), 2);
  auto net = net_of(1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto handles = std::tuple_cat(fabric.setup(net, sgd, ExponentialLR(sgd, {.gamma = 0.5})),
                                std::tuple(fabric.setup_dataloaders(DataLoader(Numbers(), kBatches))));
  train(fabric, handles);
  return {net, sgd};
}

TEST(BothApis, FabricAccumulatesAndSchedulesAsAcceleratorDoes) {
  as_ranks(2, [] {
    const auto ours = by_accelerator(), theirs = by_fabric();
    EXPECT_TRUE(saving::equal(ours.parameters, theirs.parameters));
    EXPECT_EQ(ours.rate, theirs.rate);
    EXPECT_DOUBLE_EQ(theirs.rate, 0.1 / 4);  // two updates
  });
}

TEST(BothApis, FabricSavesTheStateOfTheJob) {
  const testing::InheritedFolder folder;
  as_ranks(2, [&] {
    const auto run = [&](bool loads) {
      Fabric fabric({.project = {.automatic_checkpoint_naming = true, .directory = folder.path().string()}});
      auto net = net_of(loads ? 8 : 7);
      torch::optim::Adam adam(net->parameters(), 0.1);
      auto handles = std::tuple_cat(fabric.setup(net, adam, ExponentialLR(adam, {.gamma = 0.5})),
                                    std::tuple(fabric.setup_dataloaders(DataLoader(Numbers(), kBatches))));
      if (loads) {
        fabric.load_state();
        EXPECT_EQ(std::get<3>(handles).epoch(), 1);
      } else {
        train(fabric, handles);
        EXPECT_EQ(fabric.save_state().filename(), "checkpoint_0");
      }
      return Result(net, adam);
    };
    const auto saved = run(false), loaded = run(true);
    EXPECT_TRUE(saving::equal(saved.parameters, loaded.parameters));
    EXPECT_EQ(saved.rate, loaded.rate);
  });
}

TEST(BothApis, FabricTakesTheOptionsOfAccelerator) {
  as_ranks(2, [] {
    {
      Fabric fabric({.deterministic = true});
      EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
    }
    at::globalContext().setDeterministicAlgorithms(false, false);
    Fabric fabric({.dispatch_batches = true, .synced_generators = {.cpu = true}});
    auto loader = fabric.setup_dataloaders(DataLoader(Numbers(), kBatches));
    EXPECT_EQ(loader.sample_split().dispatch_batches, true);
    torch::manual_seed(static_cast<uint64_t>(fabric.global_rank()));
    const auto pass = loader.begin();
    const auto drawn = fabric.all_gather(torch::rand({2}));
    EXPECT_TRUE(torch::equal(drawn[0], drawn[1]));
  });
}

struct Watcher : FabricCallback {
  void on_after_setup(torch::nn::Module&) override { ++setups; }
  void on_after_optimizer_step(Optimizer&) override { ++steps; }
  void on_epoch_end(int epoch) { last_epoch = epoch; }
  int setups = 0, steps = 0, last_epoch = -1;
};

TEST(BothApis, AcceleratorCallsCallbacks) {
  const auto watcher = std::make_shared<Watcher>();
  Accelerator accelerator({.callbacks = {watcher}});
  auto net = net_of(1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  accelerator.backward(model(row(1)).sum());
  optimizer.step();
  accelerator.call(&Watcher::on_epoch_end, 5);
  EXPECT_EQ(std::tuple(watcher->setups, watcher->steps, watcher->last_epoch), std::tuple(1, 1, 5));
}

TEST(BothApis, AcceleratorSavesByName) {
  const testing::InheritedFolder folder;
  as_ranks(2, [&] {
    Accelerator accelerator;
    auto model = accelerator.prepare(net_of(1)), other = accelerator.prepare(net_of(2));
    int64_t step = 3;
    accelerator.save(folder.path() / "named", {{"net", model}, {"step", step}});
    step = 0;
    accelerator.load(folder.path() / "named", {{"net", other}, {"step", step}});
    EXPECT_EQ(step, 3);
    EXPECT_TRUE(saving::equal(model->parameters(), other->parameters()));
    auto third = accelerator.prepare(net_of(3));
    accelerator.save_model(model, folder.path() / "weights");
    accelerator.load_raw(folder.path() / "weights", third);
    EXPECT_TRUE(saving::equal(model->parameters(), third->parameters()));
  });
}

TEST(BothApis, AcceleratorLaunchesItsOwnRanks) {
  Accelerator waits({.devices = 2});
  EXPECT_EQ(testing::thrown_id([&] { waits.prepare(net_of(1)); }), "MU172");
  EXPECT_EQ(waits.num_processes(), 1);
  as_ranks(2, [] {
    Accelerator accelerator({.devices = 2});
    accelerator.launch();  // does nothing: a launcher has started both
    EXPECT_EQ(accelerator.num_processes(), 2);
    EXPECT_EQ(accelerator.all_gather(torch::ones({1})).size(0), 2);
  });
}

}  // namespace
}  // namespace muster::both_apis
