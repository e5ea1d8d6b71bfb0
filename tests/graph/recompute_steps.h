#pragma once

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "graph/recompute_models.h"
#include "graph/region.h"
#include "muster/graph/recompute.h"
#include "muster/testing/compare.h"

/// Steps of training, plain and recomputed.
namespace muster::testing {

/// What a step leaves.
struct Step {
  at::Tensor loss, draw;
  std::vector<at::Tensor> values;
};

inline Step step(const RecomputeCase& one, const at::Tensor& x, bool recompute,
                 std::optional<at::ScalarType> cast = {}) {
  at::Tensor loss;
  {
    const auto scope = recompute ? std::make_unique<RecomputeScope>(*one.module, one.options) : nullptr;
    if (cast) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, *cast);
    }
    loss = one.forward(*one.module, x).to(at::kFloat).pow(2).mean();
    if (cast) {
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
    }
  }
  loss.backward();
  Step result{loss.detach(), torch::rand({2}), {}};
  const at::NoGradGuard no_grad;
  for (const auto& parameter : one.module->parameters()) {
    result.values.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::zeros({1}));
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.05);
    parameter.mutable_grad().reset();
  }
  for (const auto& buffer : one.module->buffers()) result.values.push_back(buffer.clone());
  return result;
}

inline void expect_same_bits(const std::function<RecomputeCase()>& make, std::optional<at::ScalarType> cast = {},
                             int steps = 10) {
  at::set_num_threads(1);
  torch::manual_seed(4);
  const auto plain = make();
  torch::manual_seed(4);
  const auto recomputed = make();
  const auto before = graph::replay_counts();
  for (int i = 0; i < steps; ++i) {
    torch::manual_seed(20 + i);
    const auto x = torch::randn(plain.batch);
    torch::manual_seed(50 + i);
    const auto expected = step(plain, x, false, cast);
    torch::manual_seed(50 + i);
    const auto actual = step(recomputed, x, true, cast);
    ASSERT_EQ(testing::difference_in_bits(actual.loss, expected.loss), "") << "step " << i;
    ASSERT_EQ(testing::difference_in_bits(actual.draw, expected.draw), "") << "step " << i;
    for (size_t v = 0; v < expected.values.size(); ++v)
      ASSERT_EQ(testing::difference_in_bits(actual.values[v], expected.values[v]), "")
          << "step " << i << ", value " << v;
  }
  EXPECT_GT(graph::replay_counts().replayed, before.replayed);
}

/// A module of one function, so that a test can write down what its blocks do.
struct FunctionNetImpl : torch::nn::Module {
  using Function = std::function<at::Tensor(FunctionNetImpl& net, at::Tensor x)>;
  explicit FunctionNetImpl(Function f) : f(std::move(f)) {}
  Function f;
  torch::nn::Linear a{register_module("a", torch::nn::Linear(8, 8))}, b{register_module("b", torch::nn::Linear(8, 8))};
};

inline RecomputeCase function_case(const FunctionNetImpl::Function& f) {
  return {std::make_shared<FunctionNetImpl>(f),
          [](torch::nn::Module& net, const at::Tensor& x) {
            auto& module = *net.as<FunctionNetImpl>();
            return module.f(module, x);
          },
          {4, 8},
          {.blocks = {"a|b"}}};
}

inline at::Tensor forward(const RecomputeCase& one, const at::Tensor& x, bool recompute) {
  const auto scope = recompute ? std::make_unique<RecomputeScope>(*one.module, one.options) : nullptr;
  return one.forward(*one.module, x);
}

}  // namespace muster::testing
