#include "hook/gradient_hooks.h"

#include <stdexcept>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::hook {
namespace {

struct Stopped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

at::Tensor leaf() { return torch::ones({3}).requires_grad_(); }

TEST(GradientHook, RunsAfterAccumulationAndChains) {
  const auto parameter = leaf();
  std::string order;
  GradientHook first(parameter, [&](const at::Tensor& seen) {
    EXPECT_TRUE(seen.grad().defined());
    order += 'a';
  });
  {
    GradientHook second(parameter, [&](const at::Tensor&) { order += 'b'; });
    parameter.sum().backward();
    EXPECT_EQ(order, "ab");
  }
  parameter.sum().backward();
  EXPECT_EQ(order, "aba");
}

TEST(GradientHook, LeavesTheChainInAnyOrder) {
  const auto parameter = leaf();
  std::string order;
  auto first = std::make_unique<GradientHook>(parameter, [&](const at::Tensor&) { order += 'a'; });
  GradientHook second(parameter, [&](const at::Tensor&) { order += 'b'; });
  first.reset();
  parameter.sum().backward();
  EXPECT_EQ(order, "b");
}

TEST(GradientHook, ExceptionsKeepTheirTypeThroughBackward) {
  const auto parameter = leaf();
  {
    GradientHook hook(parameter, [](const at::Tensor&) { throw Stopped("here"); });
    EXPECT_THROW(parameter.sum().backward(), Stopped);
  }
  GradientHook hook(parameter, [](const at::Tensor&) { at_end_of_backward([] { throw Stopped("end"); }); });
  EXPECT_THROW(parameter.sum().backward(), Stopped);
}

TEST(GradientHook, TheEndComesAfterEveryHook) {
  const auto a = leaf(), b = leaf();
  std::string order;
  int64_t backward = -1;
  const auto note = [&](const at::Tensor&) {
    if (order.empty()) at_end_of_backward([&] { order += '!'; });
    order += '.';
    backward = current_backward();
    EXPECT_FALSE(backward_is_recorded());
  };
  GradientHook first(a, note), second(b, note);
  (a * b).sum().backward();
  EXPECT_EQ(order, "..!");
  EXPECT_GE(backward, 0);
  EXPECT_EQ(current_backward(), -1);
}

TEST(GradientHook, SeesARecordedBackward) {
  const auto parameter = leaf();
  bool recorded = false;
  GradientHook hook(parameter, [&](const at::Tensor&) { recorded = backward_is_recorded(); });
  parameter.square().sum().backward({}, /*keep_graph=*/true, /*create_graph=*/true);
  EXPECT_TRUE(recorded);
  parameter.mutable_grad().reset();
}

TEST(CaptureHook, SeesAutogradGradOfTheLeafAndNothingElse) {
  const auto parameter = leaf(), input = leaf();
  int captures = 0;
  {
    CaptureHook hook(parameter, [&] { ++captures; });
    (parameter * input).sum().backward();
    torch::autograd::grad({(parameter * input).sum()}, {input});
    torch::autograd::backward({(parameter * input).sum()}, {}, std::nullopt, false, {parameter});
    EXPECT_EQ(captures, 0);
    torch::autograd::grad({(parameter * input).sum()}, {parameter, input});
    EXPECT_EQ(captures, 1);
  }
  torch::autograd::grad({(parameter * input).sum()}, {parameter});
  EXPECT_EQ(captures, 1);
}

TEST(GraphUse, TellsGraphsApart) {
  const auto parameter = leaf();
  GraphUse use({parameter});
  EXPECT_FALSE(use.alive(0));
  auto known = parameter * 2;
  use.note();
  EXPECT_TRUE(use.noted(0));
  known.reset();
  auto later = parameter * 3;
  EXPECT_TRUE(use.alive(0));
  EXPECT_FALSE(use.noted(0));
  use.note();
  EXPECT_TRUE(use.noted(0));
}

}  // namespace
}  // namespace muster::hook
