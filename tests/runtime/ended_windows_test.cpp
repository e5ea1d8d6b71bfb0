// Accumulation windows that the loop ends, and gradients that it clears at a window's begin.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/thrown.h"
#include "runtime/curve.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

using namespace curve;

enum class Clear { after_steps, at_begin };

/// Parameters after epochs of `limit` micro-batches in windows of three, the last one ended by the loop.
std::vector<torch::Tensor> stopped_early(const Points& data, AcceleratorOptions options, int limit, Clear clear,
                                         bool counts = false) {
  options.gradient_accumulation_steps = 3;
  Accelerator accelerator(options);
  auto net = seeded_curve();
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
                          DataLoader(data, {.batch_size = 4}));
  for (int epoch = 0; epoch < 2; ++epoch) {
    int index = 0;
    for (auto& [x, y] : batches) {
      auto window = accelerator.accumulate(model);
      if (counts) window.count(static_cast<double>(x.size(0)));
      if (index + 1 == limit) window.end_window();
      EXPECT_EQ(window.sync_gradients(), index % 3 == 2 || index + 1 == limit);
      const auto loss = torch::mse_loss(model(x), y);
      if (clear == Clear::at_begin && index % 3 == 0) optimizer.zero_grad();
      accelerator.backward(loss);
      optimizer.step();
      if (clear == Clear::after_steps) optimizer.zero_grad();
      if (++index == limit) break;
    }
  }
  std::vector<torch::Tensor> result;
  for (auto& [name, value] : model.prepared()->managed->full_state(false)) result.push_back(value.detach().clone());
  return result;
}

void expect_bits_of_big_batches(int world, const Strategy& strategy) {
  const Accelerator keeps_the_group;  // while others come and go
  const auto data = points(4 * world * 8);
  for (const int limit : {4, 5, 7}) {
    const auto expected =
        big_batches({data.begin(), data.begin() + static_cast<int64_t>(4) * world * limit}, 12 * world, 2);
    SCOPED_TRACE(limit);
    expect_equal(stopped_early(data, {.strategy = strategy}, limit, Clear::after_steps), expected);
    expect_equal(stopped_early(data, {.strategy = strategy}, limit, Clear::after_steps, /*counts=*/true), expected);
    expect_equal(stopped_early(data, {.strategy = strategy}, limit, Clear::at_begin), expected);
  }
}

TEST(EndedWindows, WeighTheirSamplesAsBigBatchesDo) { expect_bits_of_big_batches(1, "auto"); }

TEST(EndedWindows, WeighTheirSamplesOnRanks) {
  for (const char* strategy : {"ddp", "fsdp"})
    testing::as_ranks(
        2, [&] { expect_bits_of_big_batches(2, strategy); }, strategy);
}

TEST(EndedWindows, ClearOnceBeforeTheFirstBackward) {
  Accelerator accelerator({.gradient_accumulation_steps = 3});
  auto net = seeded_curve();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto x = torch::ones({2, 4}, torch::kDouble);
  const auto gradient = [&] { return net->a->weight.grad(); };
  for (int window = 0; window < 2; ++window) {
    for (int i = 0; i < 3; ++i) {
      auto micro_batch = accelerator.accumulate(model);
      if (i == 0) {
        EXPECT_EQ(gradient().defined(), window > 0);
        optimizer.zero_grad();
        EXPECT_FALSE(gradient().defined());
      }
      accelerator.backward(model(x).sum());
      const auto before = gradient().clone();
      if (i == 2) break;
      optimizer.zero_grad();
      EXPECT_TRUE(torch::equal(gradient(), before));
    }
    optimizer.step();
  }
}

TEST(EndedWindows, LetTheNextOneBeginAfresh) {
  Accelerator accelerator({.gradient_accumulation_steps = 3});
  auto net = seeded_curve();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  std::vector<bool> ends;
  for (int i = 0; i < 8; ++i) {
    auto window = accelerator.accumulate(model);
    if (i == 1 || i == 4) window.end_window();  // the second one ends there anyway
    accelerator.backward(model(torch::ones({2, 4}, torch::kDouble)).sum());
    optimizer.step();
    optimizer.zero_grad();
    ends.push_back(accelerator.sync_gradients());
  }
  EXPECT_EQ(ends, (std::vector<bool>{false, true, false, false, true, false, false, true}));
}

TEST(EndedWindows, MustEndBeforeBackwardAndOnEveryRank) {
  for (const auto weighting : {GradientWeighting::mean, GradientWeighting::sum, GradientWeighting::fixed}) {
    Accelerator accelerator({.gradient_accumulation = {.num_steps = 2, .weighting = weighting}});
    auto net = seeded_curve();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    auto window = accelerator.accumulate(model);
    accelerator.backward(model(torch::ones({2, 4}, torch::kDouble)).sum());
    EXPECT_EQ(testing::thrown_id([&] { window.end_window(); }), "MU430");
    EXPECT_FALSE(window.sync_gradients());
  }
  testing::as_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .strategy = "ddp"});
    auto net = seeded_curve();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    accelerator.join_uneven_inputs([&, model = model, optimizer = optimizer]() mutable {
      for (int i = 0; i < 2; ++i) {
        auto window = accelerator.accumulate(model);
        EXPECT_EQ(testing::thrown_id([&] { window.end_window(); }), "MU431");
        accelerator.backward(model(torch::ones({2, 4}, torch::kDouble)).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  });
}

}  // namespace
}  // namespace muster
