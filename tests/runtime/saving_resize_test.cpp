// What is saved goes on with another number of ranks, and with another strategy.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/parallel/managed_model.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/saved_net.h"

namespace muster::saving {
namespace {

namespace fs = std::filesystem;
using testing::thrown_id;

/// Sums what the ranks saw until everything was seen.
std::vector<int64_t> seen_by_all(const Accelerator& accelerator, const std::vector<int64_t>& mine) {
  auto all = accelerator.gather_object(mine);
  std::sort(all.begin(), all.end());
  return all;
}

TEST(Saving, AnotherNumberOfRanksGoesOnAtTheSameSample) {
  std::vector<int64_t> everything(24);
  for (int64_t i = 0; i < 24; ++i) everything[static_cast<size_t>(i)] = i;
  testing::as_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    const auto folder = fs::temp_directory_path() / ("muster-test-resize" + std::to_string(getppid()));
    SavedNet net;
    auto [model, optimizer, loader] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1),
                                                          DataLoader(Numbers(), {.batch_size = 2, .shuffle = true}));
    std::vector<int64_t> mine;
    for (auto& batch : loader) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(torch::ones({2, 3})).mean());
      optimizer.step();
      optimizer.zero_grad();
      if (loader.num_yielded() <= 2)  // the third batch opens a window, and will run again
        for (int64_t i = 0; i < 2; ++i) mine.push_back(batch[i].item<int64_t>());
      if (loader.num_yielded() == 3) break;
    }
    const auto all = seen_by_all(accelerator, mine);
    accelerator.save_state(folder);
    if (accelerator.is_main_process()) {
      std::ofstream list(folder.string() + ".seen");
      for (const auto i : all) list << i << ' ';
    }
  });
  const auto made = fs::temp_directory_path() / ("muster-test-resize" + std::to_string(getpid()));
  ASSERT_TRUE(fs::exists(made));
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  SavedNet net;
  auto [model, optimizer, loader] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1),
                                                        DataLoader(Numbers(), {.batch_size = 2, .shuffle = true}));
  accelerator.load_state(made);
  std::vector<int64_t> seen;
  std::ifstream list(made.string() + ".seen");
  for (int64_t i = 0; list >> i;) seen.push_back(i);
  EXPECT_EQ(seen.size(), 8U);
  for (auto& batch : loader)
    for (int64_t i = 0; i < 2; ++i) seen.push_back(batch[i].item<int64_t>());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, everything);
  fs::remove_all(made);
  fs::remove(made.string() + ".seen");
}

TEST(Saving, AnOpenWindowWithoutALoaderNeedsItsRanks) {
  testing::as_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    SavedNet net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    auto window = accelerator.accumulate(model);
    accelerator.save_state(fs::temp_directory_path() / ("muster-test-window" + std::to_string(getppid())));
  });
  const auto made = fs::temp_directory_path() / ("muster-test-window" + std::to_string(getpid()));
  ASSERT_TRUE(fs::exists(made));
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  SavedNet net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  EXPECT_EQ(thrown_id([&] { accelerator.load_state(made); }), "MU242");
  fs::remove_all(made);
}

struct ShardedNetImpl : torch::nn::Module {
  torch::nn::Linear a{register_module("a", torch::nn::Linear(30, 70))},
      b{register_module("b", torch::nn::Linear(70, 30))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(70))};
  at::Tensor forward(at::Tensor x) {
    return torch::matmul(norm(torch::tanh(a(x))), b->weight.t());
  }  // b.bias is never used
  ShardedNetImpl() {
    const torch::NoGradGuard no_grad;
    b->bias.requires_grad_(false);
    a->weight.set_data(a->weight.t().contiguous().t());  // lies the other way round in memory
  }
};
TORCH_MODULE(ShardedNet);

/// Trains `before` steps, loads or saves, and trains on; returns all weights and the optimizer's step count.
std::vector<at::Tensor> sharded_course(Strategy strategy, int before, const fs::path& load, const fs::path& save,
                                       int after) {
  torch::manual_seed(3);
  Accelerator accelerator({.gradient_accumulation_steps = 2, .strategy = strategy});
  ShardedNet net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  if (!load.empty()) accelerator.load_state(load);
  const auto train = [&](int from, int count) {
    for (int step = from; step < from + count; ++step)
      for (int micro = 0; micro < 2; ++micro) {
        auto window = accelerator.accumulate(model);
        accelerator.backward(
            model(torch::cos(torch::arange(120, torch::kFloat) * (step + 2) + micro).view({4, 30})).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
  };
  train(load.empty() ? 0 : before, load.empty() ? before : 0);
  if (!save.empty()) accelerator.save_state(save);
  train(before, after);
  std::vector<at::Tensor> weights;
  for (const auto& [name, tensor] : model.prepared()->managed->full_state(false))
    weights.push_back(tensor.detach().clone());
  return weights;
}

TEST(Saving, ShardedStateGoesToAnyStrategyAndNumberOfRanks) {
  const auto at_test = [](pid_t test, const char* name) {
    return fs::temp_directory_path() / ("muster-test-sharded" + std::to_string(test) + name);
  };
  testing::as_ranks(2, [&] {
    const Accelerator first;
    const auto sharded = at_test(getppid(), "-fsdp"), whole = at_test(getppid(), "-ddp");
    const auto expected = sharded_course("fsdp", 2, {}, sharded, 2);
    EXPECT_TRUE(equal(sharded_course("ddp", 2, {}, whole, 2), expected));
    for (const auto& saved : {sharded, whole})
      for (const Strategy& strategy : {Strategy("fsdp"), Strategy("ddp")})
        EXPECT_TRUE(equal(sharded_course(strategy, 2, saved, {}, 2), expected)) << saved << ", " << strategy.name();
  });
  testing::as_ranks(
      3,
      [&] {
        const Accelerator first;
        const auto expected = sharded_course("ddp", 2, at_test(getppid(), "-ddp"), {}, 1);
        EXPECT_TRUE(equal(sharded_course("fsdp", 2, at_test(getppid(), "-fsdp"), {}, 1), expected));
      },
      "three");
  ASSERT_TRUE(fs::exists(at_test(getpid(), "-fsdp")));
  // The same data on every rank: one rank makes the same steps, to rounding.
  const auto from_sharded = sharded_course("auto", 2, at_test(getpid(), "-fsdp"), {}, 2);
  const auto from_whole = sharded_course("auto", 2, at_test(getpid(), "-ddp"), {}, 2);
  EXPECT_TRUE(equal(from_sharded, from_whole));
  for (const auto* name : {"-fsdp", "-ddp"}) fs::remove_all(at_test(getpid(), name));
}

}  // namespace
}  // namespace muster::saving
