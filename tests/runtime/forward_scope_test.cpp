#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "runtime/curve.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

using namespace curve;

/// Parameters after steps of two losses each: whole steps inside of one forward, or as separate calls.
std::vector<torch::Tensor> two_losses(bool inside, const Strategy& strategy) {
  Accelerator accelerator({.strategy = strategy});
  auto net = seeded_curve();
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::Adam(net->parameters(), 0.05), DataLoader(points(24), {.batch_size = 4}));
  for (auto& [x, y] : batches) {
    const auto step = [&, &y = y, &optimizer = optimizer](const torch::Tensor& output) {
      accelerator.backward(torch::mse_loss(output, y));
      optimizer.step();
      optimizer.zero_grad();
    };
    if (inside) {
      model.run(
          [&, &model = model](CurveImpl& own, const torch::Tensor& input) {
            outside_forward(model, [&] { optimizer.zero_grad(); });
            accelerator.backward(torch::mse_loss(own.forward(input), y));
            outside_forward(model, [&] {
              optimizer.step();
              optimizer.zero_grad();
            });
            accelerator.backward(torch::mse_loss(own.forward(2 * input), y));
            outside_forward(model, [&] { optimizer.step(); });
            return own.forward(input);
          },
          x);
      optimizer.zero_grad();
    } else {
      step(model(x));
      step(model(2 * x));
    }
  }
  std::vector<torch::Tensor> result;
  for (auto& [name, value] : model.prepared()->managed->full_state(false)) result.push_back(value.detach().clone());
  return result;
}

TEST(ForwardScope, LetsBackwardRunInsideOfAForward) {
  expect_equal(two_losses(true, "auto"), two_losses(false, "auto"));
}

TEST(ForwardScope, LetsBackwardRunInsideOfAForwardOnRanks) {
  for (const char* strategy : {"ddp", "fsdp", "zero2"})
    testing::as_ranks(
        2,
        [&] {
          const Accelerator keeps_the_group;
          expect_equal(two_losses(true, strategy), two_losses(false, strategy));
        },
        strategy);
}

bool casts() { return at::autocast::is_autocast_enabled(at::kCPU); }

TEST(ForwardScope, IsClosedOutsideOfTheForward) {
  Accelerator accelerator({.mixed_precision = "bf16"});
  auto model = accelerator.prepare(seeded_curve());
  const int seen = model.run([&](CurveImpl&) {
    EXPECT_TRUE(casts());
    const int inner = model.run([&](CurveImpl&) {
      EXPECT_EQ(model.prepared()->scopes.size(), 2U);
      const int result = outside_forward(model, [&] {
        EXPECT_TRUE(model.prepared()->scopes.empty());
        EXPECT_FALSE(casts());
        return 7;
      });
      EXPECT_TRUE(casts());
      return result;
    });
    EXPECT_EQ(model.prepared()->scopes.size(), 1U);
    return inner;
  });
  EXPECT_EQ(seen, 7);
  EXPECT_FALSE(casts());
  EXPECT_EQ(outside_forward(model, [] { return std::string("none was open"); }), "none was open");
}

TEST(ForwardScope, IsOpenInAFunctionThatReturnsNothing) {
  Accelerator accelerator({.mixed_precision = "bf16"});
  auto model = accelerator.prepare(seeded_curve());
  int64_t seen = 0;
  model.run([&](CurveImpl&, const torch::Tensor& x) { seen = casts() ? x.numel() : 0; }, torch::ones(3));
  EXPECT_EQ(seen, 3);
  static_assert(std::is_void_v<decltype(model.run([](CurveImpl&) {}))>);
}

TEST(ForwardScope, StaysClosedAfterAnException) {
  Accelerator accelerator({.mixed_precision = "bf16"});
  auto model = accelerator.prepare(seeded_curve());
  EXPECT_THROW(model.run([&](CurveImpl&) {
    outside_forward(model, [] { throw std::runtime_error("of the test's own"); });
    return 0;
  }),
               std::runtime_error);
  EXPECT_TRUE(model.prepared()->scopes.empty());
  EXPECT_FALSE(casts());
  EXPECT_TRUE(model.run([](CurveImpl&) { return casts(); }));
}

}  // namespace
}  // namespace muster
