#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/testing/thrown.h"
#include "runtime/curve.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

using json = nlohmann::json;

using namespace curve;

void expect_big_batches(int world, Strategy strategy) {
  const Accelerator keeps_the_meeting_place;  // while others come and go
  for (const int steps : {5, 7})
    for (const int k : {1, 2, 4}) {
      SCOPED_TRACE(::testing::Message() << "ranks " << world << ", steps " << steps << ", micro-batches " << k);
      AcceleratorOptions options{.even_batches = false, .gradient_accumulation_steps = k, .strategy = strategy};
      const auto short_last = points(4 * world * steps - 3);  // the last rank's last batch has one sample
      expect_equal(micro_batches(short_last, {options}), big_batches(short_last, 4 * world * k, 2));
      options.split_batches = true;
      const auto split = points(12 * (steps - 1) + 9);
      expect_equal(micro_batches(split, {options, 12}), big_batches(split, 12 * k, 2));
    }
}

TEST(Accumulation, OneRankEqualsBigBatches) { expect_big_batches(1, "auto"); }

TEST(Accumulation, RanksEqualBigBatches) {
  for (int world : {2, 3})
    testing::as_ranks(
        world, [world] { expect_big_batches(world, "ddp"); }, std::to_string(world));
}

TEST(Accumulation, ShardedRanksEqualBigBatches) {
  testing::as_ranks(2, [] { expect_big_batches(2, "fsdp"); });
}

TEST(Accumulation, EvenBatchesCountRepeatedSamplesLikeOthers) {
  testing::as_ranks(2, [] {
    auto data = points(4 * 2 * 3 + 3);  // the last step repeats the first five
    AcceleratorOptions options{.gradient_accumulation_steps = 2};
    const auto trained = micro_batches(data, {options, 4, 1});
    for (int i = 0; i < 5; ++i) data.push_back(data[i]);
    expect_equal(trained, big_batches(data, 16, 1));
  });
}

TEST(Accumulation, EveryBatchMayCommunicate) {
  testing::as_ranks(2, [] {
    const Accelerator keeps_the_meeting_place;
    const auto data = points(4 * 2 * 5 - 3);
    AcceleratorOptions options{.even_batches = false,
                               .gradient_accumulation = {.num_steps = 2, .sync_each_batch = true}};
    expect_equal(micro_batches(data, {options}), big_batches(data, 16, 2));
    options.strategy = "fsdp";
    expect_equal(micro_batches(data, {options}), big_batches(data, 16, 2));
  });
}

class AccumulationCase : public ::testing::TestWithParam<int> {};

const std::vector<json>& accumulation_cases() {
  static const auto all = json::parse(std::ifstream(std::string(MUSTER_SOURCE_DIR) + "/tests/runtime/loop_cases.json"))
                              .at("gradient_accumulation_cases")
                              .get<std::vector<json>>();
  return all;
}

TEST_P(AccumulationCase, EndsWindowsAsTheReferenceDoes) {
  const auto& c = accumulation_cases()[GetParam()];
  SCOPED_TRACE(c.dump());
  Accelerator accelerator({.gradient_accumulation = {.num_steps = c.at("num_steps"),
                                                     .sync_with_dataloader = c.at("sync_with_dataloader")}});
  auto net = seeded_curve();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  const auto data = points(c.at("batches_per_epoch"));
  auto [model, optimizer, scheduler, batches] =
      accelerator.prepare(net, sgd, torch::optim::StepLR(sgd, 1, 0.5), DataLoader(data, {.batch_size = 1}));
  std::vector<int> syncs;
  int steps = 0;
  for (int epoch = 0; epoch < c.at("epochs").get<int>(); ++epoch)
    for (auto& [x, y] : batches) {
      auto window = accelerator.accumulate(model);
      EXPECT_EQ(window.sync_gradients(), accelerator.sync_gradients());
      accelerator.backward(torch::mse_loss(model(x), y));
      const auto before = net->a->weight.detach().clone();
      optimizer.step();
      optimizer.zero_grad();
      scheduler.step();
      EXPECT_EQ(!torch::equal(before, net->a->weight), accelerator.sync_gradients());
      syncs.push_back(accelerator.sync_gradients());
      steps += accelerator.sync_gradients();
    }
  EXPECT_EQ(syncs, c.at("sync_gradients").get<std::vector<int>>());
  EXPECT_EQ(steps, c.at("optimizer_steps").get<int>());
  // LibTorch's first step of a schedule leaves the rate.
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), std::pow(0.5, std::max(0, steps - 1)));
}

INSTANTIATE_TEST_SUITE_P(Vectors, AccumulationCase, ::testing::Range(0, static_cast<int>(accumulation_cases().size())));

TEST(Accumulation, StepsThatOpenNoMicroBatchAreSpokenOfOnce) {
  const auto said_with = [](int steps, bool accumulates) {
    Accelerator accelerator({.gradient_accumulation_steps = steps});
    auto net = seeded_curve();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 4; ++i) {
      std::unique_ptr<AccumulationScope> window;
      if (accumulates) window.reset(new AccumulationScope(accelerator.accumulate(model)));
      accelerator.backward(model(torch::ones({2, 4}, torch::kDouble)).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto said = ::testing::internal::GetCapturedStderr();
    int times = 0;
    for (auto at = said.find("MU248"); at != std::string::npos; at = said.find("MU248", at + 1)) ++times;
    return times;
  };
  EXPECT_EQ(said_with(4, false), 1);
  EXPECT_EQ(said_with(4, true), 0);
  EXPECT_EQ(said_with(1, false), 0);
}

TEST(Weighting, TokensGivenByTheUserCount) {
  testing::as_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    const auto data = points(24);
    auto net = seeded_curve(), big = seeded_curve();
    torch::optim::SGD sgd(big->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const int rank = accelerator.process_index();
    const auto take = [&](int64_t begin, int64_t count) {
      std::vector<torch::Tensor> x, y;
      for (int64_t i = begin; i < begin + count; ++i) {
        x.push_back(std::get<0>(data[i]));
        y.push_back(std::get<1>(data[i]));
      }
      return std::make_pair(torch::stack(x), torch::stack(y));
    };
    const int64_t counts[2][4] = {{1, 4, 2, 2}, {3, 2, 5, 1}};  // by rank, two windows
    for (int window_index = 0; window_index < 2; ++window_index) {
      std::vector<torch::Tensor> x, y;
      for (int micro = 2 * window_index; micro < 2 * window_index + 2; ++micro)
        for (int r = 0; r < 2; ++r) {
          const auto [part_x, part_y] = take(4 * micro + 2 * r, counts[r][micro]);
          x.push_back(part_x);
          y.push_back(part_y);
          if (r != rank) continue;
          auto window = accelerator.accumulate(model);
          window.count(static_cast<double>(counts[r][micro]));
          accelerator.backward(torch::mse_loss(model(part_x), part_y));
          optimizer.step();
          optimizer.zero_grad();
        }
      sgd.zero_grad();
      torch::mse_loss(big(torch::cat(x)), torch::cat(y)).backward();
      sgd.step();
    }
    expect_equal(net->parameters(), big->parameters());
  });
}

TEST(Weighting, ACountComesBeforeItsBackward) {
  Accelerator accelerator;
  auto model = accelerator.prepare(seeded_curve());
  auto window = accelerator.accumulate(model);
  accelerator.backward(model(torch::ones({1, 4}, torch::kDouble)).sum());
  EXPECT_EQ(testing::thrown_id([&] { window.count(3); }), "MU182");
}

TEST(Weighting, SumAddsUpAndFixedDividesByTheNumberOfSteps) {
  const auto gradient = [](GradientWeighting weighting) {
    Accelerator accelerator({.gradient_accumulation = {.num_steps = 3, .weighting = weighting}});
    auto net = seeded_curve();
    auto model = accelerator.prepare(net);
    const auto data = points(10);
    auto batches = accelerator.prepare(DataLoader(data, {.batch_size = 2}));
    for (auto& [x, y] : batches) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(x).sum());
    }
    return net->b->bias.grad().item<double>();  // of all ten, since nothing was cleared
  };
  EXPECT_DOUBLE_EQ(gradient(GradientWeighting::sum), 10);
  EXPECT_DOUBLE_EQ(gradient(GradientWeighting::fixed), 10 / 3.0);
}

TEST(Options, OneNumberOfMicroBatches) {
  EXPECT_EQ(testing::thrown_id([] { Accelerator accelerator({.gradient_accumulation_steps = 0}); }), "MU181");
  EXPECT_EQ(testing::thrown_id([] {
              Accelerator accelerator({.gradient_accumulation = {.num_steps = 2}, .gradient_accumulation_steps = 3});
            }),
            "MU181");
  Accelerator accelerator({.gradient_accumulation_steps = 3});
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 3);
  accelerator.set_gradient_accumulation_steps(2);
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 2);
}

TEST(Options, SchedulesInMicroBatches) {
  Accelerator accelerator({.gradient_accumulation = {.adjust_scheduler = true, .num_steps = 2}});
  auto net = seeded_curve();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  const auto data = points(3);
  auto [model, optimizer, scheduler, batches] =
      accelerator.prepare(net, sgd, torch::optim::StepLR(sgd, 1, 0.5), DataLoader(data, {.batch_size = 1}));
  for (auto& [x, y] : batches) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(torch::mse_loss(model(x), y));
    optimizer.step();
    scheduler.step();
  }
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(),
                   0.25);  // three micro-batches, of which LibTorch ignores the first
  Accelerator untied({.gradient_accumulation_steps = 2, .step_scheduler_with_optimizer = false});
  torch::optim::SGD other(net->parameters(), 1.0);
  auto [ignored, free] = untied.prepare(other, torch::optim::StepLR(other, 1, 0.5));
  for (int i = 0; i < 3; ++i) {
    auto window = untied.accumulate();
    free.step();
  }
  EXPECT_DOUBLE_EQ(other.param_groups()[0].options().get_lr(), 0.25);
}

TEST(Windows, ClippingWaitsForTheEnd) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto model = accelerator.prepare(seeded_curve());
  const auto x = torch::ones({2, 4}, torch::kDouble);
  for (int i = 0; i < 2; ++i) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).sum());
    const auto before = model->b->bias.grad().item<double>();
    const double norm = accelerator.clip_grad_norm_(model, 1e-3);
    accelerator.clip_grad_value_(model, 10);
    EXPECT_EQ(norm > 0, i == 1);
    EXPECT_EQ(model->b->bias.grad().item<double>() < before, i == 1);
  }
}

TEST(Windows, AnEvaluationInBetweenDisturbsNothing) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  const auto data = points(3), other = points(1);
  auto [model, batches, eval] = accelerator.prepare(seeded_curve(), DataLoader(data), DataLoader(other));
  std::vector<bool> syncs;
  for (auto& batch : batches) {
    EXPECT_EQ(std::get<0>(batch).size(0), 1);
    for (auto& [a, b] : eval) EXPECT_EQ(a.size(0), 1);
    auto window = accelerator.accumulate(model);
    syncs.push_back(window.sync_gradients());
  }
  EXPECT_EQ(syncs, (std::vector<bool>{false, true, true}));
}

TEST(Windows, OneReductionEach) {
  testing::as_ranks(2, [] {
    Runtime runtime(runtime::accelerate({.gradient_accumulation_steps = 4}));
    const auto data = points(2 * 4 * 8);
    auto net = seeded_curve();
    auto [model, optimizer, batches] =
        runtime.prepare(net, torch::optim::SGD(net->parameters(), 0.1), DataLoader(data, {.batch_size = 4}));
    std::map<std::string, int> seen;
    runtime.group().observe([&](const comm::OperationEvent& event) { ++seen[std::string(event.operation)]; });
    for (auto& [x, y] : batches) {
      auto window = runtime.accumulate(model);
      runtime.backward(torch::mse_loss(model(x), y));
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(seen, (std::map<std::string, int>{{"all_reduce", 2}}));  // eight micro-batches, two windows
  });
}

TEST(FabricsForm, IsByHand) {
  testing::as_ranks(2, [] {
    const auto data = points(32);
    Fabric fabric;
    auto net = seeded_curve();
    auto [model, optimizer] =
        fabric.setup(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
    auto batches = fabric.setup_dataloaders(DataLoader(data, {.batch_size = 4}));
    int step = 0;
    for (int epoch = 0; epoch < 2; ++epoch)
      for (auto& [x, y] : batches) {
        const bool accumulating = ++step % 2 != 0;
        auto quiet = fabric.no_backward_sync(model, accumulating);
        fabric.backward(torch::mse_loss(model(x), y) / 2);
        if (accumulating) continue;
        optimizer.step();
        optimizer.zero_grad();
      }
    expect_equal(net->parameters(), big_batches(data, 16, 2));
  });
}

}  // namespace
}  // namespace muster
