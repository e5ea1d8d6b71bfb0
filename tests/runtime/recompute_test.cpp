#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "graph/recompute_models.h"
#include "graph/region.h"
#include "muster/accelerator.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "parallel/sharded_model.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

/// One way to train.
struct Setting {
  std::string model, strategy, precision;
  int window = 1;       // micro-batches
  bool freeze = false;  // the first parameter of the first block
};

Strategy strategy_of(const std::string& name) {
  if (name == "fsdp gathered") return FSDP{.one_copy_per_host = false};
  if (name == "fsdp kept") return FSDP{.one_copy_per_host = false, .reshard_after_forward = false};
  if (name == "hsdp") return FSDP{.one_copy_per_host = false, .shard_group_size = 1};
  return Strategy::parse(name);
}

/// What training leaves: losses, a draw of the generator, parameters and buffers.
std::vector<at::Tensor> train(const Setting& setting, bool recompute) {
  at::set_num_threads(1);
  torch::manual_seed(3);
  testing::RecomputeCase one;
  for (const auto& [name, make] : testing::recompute_cases())
    if (name == setting.model) one = make();
  if (setting.freeze) one.module->parameters().front().requires_grad_(false);
  Accelerator accelerator({.gradient_accumulation_steps = setting.window,
                           .mixed_precision = Precision::parse(setting.precision),
                           .recompute = recompute ? one.options : RecomputeOptions(),
                           .strategy = strategy_of(setting.strategy)});
  auto [model, optimizer] = accelerator.prepare(one.module, torch::optim::AdamW(one.module->parameters(), 1e-2));
  std::vector<at::Tensor> left;
  for (int i = 0; i < 10; ++i) {
    torch::manual_seed(100 * i + accelerator.process_index());
    const auto x = torch::randn(one.batch);
    const auto window = accelerator.accumulate(model);
    const auto loss =
        model.run([&](torch::nn::Module& net) { return one.forward(net, x); }).to(at::kFloat).pow(2).mean();
    left.push_back(loss.detach().clone());
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  left.push_back(torch::rand({2}));
  for (const auto& [name, value] : model.prepared()->managed->full_state(/*main_only=*/false)) left.push_back(value);
  return left;
}

void expect_same_bits(const Setting& setting) {
  SCOPED_TRACE(setting.model + ", " + setting.strategy + ", " + setting.precision + ", window " +
               std::to_string(setting.window) + (setting.freeze ? ", frozen" : ""));
  const auto expected = train(setting, false);
  const auto before = graph::replay_counts().replayed;
  const auto actual = train(setting, true);
  EXPECT_GT(graph::replay_counts().replayed, before);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(testing::difference_in_bits(actual[i], expected[i]), "") << "value " << i;
}

const std::vector<std::string> kModels{"mlp", "conv", "cell", "shared", "branches", "router", "function"};
const std::vector<std::string> kStrategies{"ddp", "zero1", "zero2", "fsdp", "fsdp gathered", "fsdp kept", "hsdp"};
const std::vector<std::string> kPrecisions{"no", "bf16", "fp16"};

/// Every pair of a model and a strategy, and of either and the other choices; all combinations in the full tests.
std::vector<Setting> settings() {
  std::vector<Setting> chosen;
  const bool full = std::getenv("MUSTER_TEST_FULL") != nullptr;
  for (size_t m = 0; m < kModels.size(); ++m)
    for (size_t s = 0; s < kStrategies.size(); ++s)
      for (size_t p = 0; p < kPrecisions.size(); ++p)
        for (int window = 1; window <= 2; ++window)
          for (const bool freeze : {false, true}) {
            const bool covers =
                p == (m + s) % 3 && window == 1 + static_cast<int>((m + s / 2) % 2) && freeze == ((m / 2 + s) % 2 == 1);
            if (full || covers) chosen.push_back({kModels[m], kStrategies[s], kPrecisions[p], window, freeze});
          }
  return chosen;
}

class RecomputeWorld : public ::testing::TestWithParam<int> {};

TEST_P(RecomputeWorld, EveryStrategyGetsTheSameBits) {
  const int world = GetParam();
  testing::as_ranks(
      world,
      [&] {
        for (const auto& setting : settings()) expect_same_bits(setting);
      },
      {}, std::chrono::minutes(3));
}

INSTANTIATE_TEST_SUITE_P(Worlds, RecomputeWorld, ::testing::Values(1, 2, 3));

/// Gathers and frees of three steps, after two that learn the order.
std::pair<int64_t, int64_t> gathers_and_regions(const FSDP& sharding, const RecomputeOptions& recompute,
                                                const std::string& model_name) {
  at::set_num_threads(1);
  torch::manual_seed(3);
  testing::RecomputeCase one;
  for (const auto& [name, make] : testing::recompute_cases())
    if (name == model_name) one = make();
  Accelerator accelerator({.recompute = recompute, .strategy = sharding});
  auto model = accelerator.prepare(one.module);
  const auto& sharded = dynamic_cast<const parallel::ShardedModel&>(*model.prepared()->managed);
  std::pair<int64_t, int64_t> counts;
  for (int i = 0; i < 5; ++i) {
    if (i == 2) counts = {sharded.stats().gathers, graph::replay_counts().replays};
    torch::manual_seed(i);
    // It requires a gradient, since backward needs no weights of a first layer whose input requires none; a replay
    // does.
    const auto x = torch::randn(one.batch).requires_grad_();
    accelerator.backward(model.run([&](torch::nn::Module& net) { return one.forward(net, x); }).pow(2).mean());
  }
  return {sharded.stats().gathers - counts.first, graph::replay_counts().replays - counts.second};
}

TEST(RecomputeSharding, GathersAsOftenAsWithout) {
  testing::as_ranks(2, [] {
    const std::vector<FSDP> ways{{.one_copy_per_host = false},
                                 {.limit_gathered_mb = 64, .one_copy_per_host = false},
                                 {.one_copy_per_host = false, .reshard_after_forward = false},
                                 {.one_copy_per_host = false, .unit_classes = {"RecomputeBlock", "Linear"}}};
    for (size_t way = 0; way < ways.size(); ++way)
      for (const char* blocks : {"RecomputeBlock", "auto"}) {
        SCOPED_TRACE(std::to_string(way) + " " + blocks);
        const auto plain = gathers_and_regions(ways[way], {}, "mlp");
        const auto recomputed = gathers_and_regions(ways[way], {.blocks = {blocks}}, "mlp");
        EXPECT_EQ(recomputed.first, plain.first);
        EXPECT_GT(recomputed.second, plain.second);
      }
  });
}

TEST(RecomputeSharding, TheStrategyMaySayIt) {
  testing::as_ranks(2, [] {
    const auto replays = [](const FSDP& sharding) { return gathers_and_regions(sharding, {}, "mlp").second; };
    EXPECT_EQ(replays({}), 0);
    EXPECT_GT(replays({.activation_checkpointing = true}), 0);
    EXPECT_GT(replays({.activation_checkpointing = "RecomputeBlock"}), 0);
    EXPECT_GT(replays({.activation_checkpointing = {typeid(testing::RecomputeBlockImpl)}}), 0);
    EXPECT_GT(replays({.activation_checkpointing = std::vector<std::string>{"RecomputeBlock"}}), 0);
  });
}

TEST(RecomputeRanks, SynchronisedStatisticsAreUpdatedOnce) {
  testing::as_ranks(2, [] {
    at::set_num_threads(1);
    std::vector<at::Tensor> left[2];
    for (const bool recompute : {false, true}) {
      torch::manual_seed(3);
      testing::ConvNet net;
      Accelerator accelerator(
          {.recompute = {.blocks = recompute ? std::vector<std::string>{"ConvBlock"} : std::vector<std::string>()}});
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      EXPECT_EQ(accelerator.convert_sync_batchnorm(model), 3);
      for (int i = 0; i < 3; ++i) {
        torch::manual_seed(10 * i + accelerator.process_index());
        accelerator.backward(model(torch::randn({4, 3, 5, 5})).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      for (const auto& value : net->parameters()) left[recompute].push_back(value.detach().clone());
      for (const auto& value : net->buffers()) left[recompute].push_back(value.clone());
    }
    for (size_t i = 0; i < left[0].size(); ++i)
      EXPECT_EQ(testing::difference_in_bits(left[1].at(i), left[0][i]), "") << "value " << i;
  });
}

/// Trains within a budget, or without recompute: parameters, and which blocks are made again.
std::pair<std::vector<at::Tensor>, at::Tensor> train_within(double budget_mib, const std::string& strategy) {
  at::set_num_threads(1);
  torch::manual_seed(3);
  const testing::Stack net(32, 6);
  Accelerator accelerator(
      {.recompute = {.blocks = {"RecomputeBlock"}, .budget_mib = budget_mib}, .strategy = strategy_of(strategy)});
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
  EXPECT_EQ(accelerator.plan().find("GFLOP"), std::string::npos);
  for (int i = 0; i < 4; ++i) {
    torch::manual_seed(100 * i + accelerator.process_index());
    optimizer.zero_grad();
    accelerator.backward(model(torch::randn({256, 32})).pow(2).mean());
    optimizer.step();
  }
  const auto plan = accelerator.plan();
  EXPECT_NE(plan.find("recompute: "), std::string::npos) << plan;
  EXPECT_NE(plan.find("blocks.5: "), std::string::npos) << plan;
  EXPECT_NE(plan.find(" made again, by 0.0021 GFLOP"), std::string::npos) << plan;
  const auto chosen = torch::zeros({1, 6}, at::kLong);
  const auto& blocks = *model.prepared()->recomputed;
  for (size_t i = 0; i < blocks.all().size(); ++i) chosen[0][static_cast<int64_t>(i)] = blocks.is_recomputed(i);
  std::vector<at::Tensor> left;
  for (const auto& [name, value] : model.prepared()->managed->full_state(/*main_only=*/false)) left.push_back(value);
  return {left, accelerator.gather(chosen)};
}

TEST_P(RecomputeWorld, ABudgetIsOneChoiceOfAllRanks) {
  testing::as_ranks(GetParam(), [] {
    for (const auto* strategy : {"ddp", "zero2", "fsdp", "fsdp gathered", "hsdp"}) {
      SCOPED_TRACE(strategy);
      const auto [expected, all] = train_within(0, strategy);
      EXPECT_EQ(all.sum().item<int64_t>(), all.numel());
      const auto [actual, some] = train_within(0.5, strategy);
      // Six blocks take 194 KiB each, and 32 KiB when they are made again.
      EXPECT_EQ(some.sum().item<int64_t>(), 5 * some.size(0));
      for (int64_t rank = 1; rank < some.size(0); ++rank) EXPECT_TRUE(some[rank].equal(some[0]));
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_EQ(testing::difference_in_bits(actual.at(i), expected[i]), "") << "value " << i;
    }
  });
}

/// Trains on batches of which the first rank has more, in join_uneven_inputs; and then with averaged parameters.
std::vector<at::Tensor> train_unevenly(const std::string& strategy, bool recompute) {
  at::set_num_threads(1);
  torch::manual_seed(3);
  const testing::Stack net(8, 3);
  Accelerator accelerator(
      {.recompute = {.blocks = recompute ? std::vector<std::string>{"RecomputeBlock"} : std::vector<std::string>()},
       .strategy = strategy_of(strategy)});
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
  const int rank = accelerator.process_index();
  const auto step = [&, &model = model, &optimizer = optimizer](int i) {
    torch::manual_seed(100 * i + rank);
    accelerator.backward(model(torch::randn({6, 8})).pow(2).mean());
    optimizer.step();
    optimizer.zero_grad();
  };
  accelerator.join_uneven_inputs([&] {
    for (int i = 0; i < (rank == 0 ? 5 : 2); ++i) step(i);
  });
  if (strategy == "ddp") {
    auto local = accelerator.local_sgd(model, {.local_sgd_steps = 2});
    for (int i = 5; i < 9; ++i) {
      step(i);
      local.step();
    }
    local.finish();
  }
  std::vector<at::Tensor> left;
  for (const auto& [name, value] : model.prepared()->managed->full_state(/*main_only=*/false)) left.push_back(value);
  return left;
}

TEST(RecomputeRanks, UnevenInputsAndAveragedParametersGetTheSameBits) {
  for (const int world : {2, 3})
    testing::as_ranks(world, [] {
      for (const auto& strategy : kStrategies) {
        SCOPED_TRACE(strategy);
        const auto expected = train_unevenly(strategy, false);
        const auto before = graph::replay_counts().replayed;
        const auto actual = train_unevenly(strategy, true);
        EXPECT_GT(graph::replay_counts().replayed, before);
        for (size_t i = 0; i < expected.size(); ++i)
          ASSERT_EQ(testing::difference_in_bits(actual.at(i), expected[i]), "") << "value " << i;
      }
    });
}

TEST(RecomputeRanks, ABudgetIsChosenBeforeUnevenInputs) {  // MU589
  testing::as_ranks(2, [] {
    const testing::Stack net(8, 3);
    Accelerator accelerator({.recompute = {.blocks = {"RecomputeBlock"}, .budget_mib = 1}});
    auto model = accelerator.prepare(net);
    EXPECT_EQ(testing::thrown_id([&] { accelerator.join_uneven_inputs([] {}); }), "MU589");
    for (int i = 0; i < 2; ++i) accelerator.backward(model(torch::ones({2, 8})).sum());
    accelerator.join_uneven_inputs([&] { accelerator.backward(model(torch::ones({2, 8})).sum()); });
  });
}

TEST(RecomputeRanks, MustChooseTheSameBlocks) {  // MU150
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    const bool first = accelerator.process_index() == 0;
    Accelerator other({.recompute = {.blocks = {"auto"}, .every = first ? 1 : 2}});
    EXPECT_EQ(testing::thrown_id([&] { static_cast<void>(other.prepare(testing::Stack(8, 3))); }), "MU150");
  });
}

}  // namespace
}  // namespace muster
