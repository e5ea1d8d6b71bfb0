// What people reported of activation checkpointing elsewhere, where the code of a block runs twice.
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "graph/recompute_steps.h"
#include "muster/graph/recompute.h"
#include "muster/testing/compare.h"

namespace muster {
namespace {

using testing::expect_same_bits;
using testing::function_case;
using testing::FunctionNetImpl;

// pytorch #155171
TEST(RecomputeReports, ACacheOfTheModuleGrowsOnceInAStep) {
  std::vector<std::shared_ptr<std::vector<at::Tensor>>> caches;
  expect_same_bits([&] {
    const auto cache = caches.emplace_back(std::make_shared<std::vector<at::Tensor>>());
    return function_case([cache](FunctionNetImpl& net, const at::Tensor& x) {
      const auto keys = torch::tanh(net.a(x));
      cache->push_back(keys.detach().mean(0, /*keepdim=*/true));
      return net.b(torch::gelu(keys * torch::cat(*cache).mean(0)));
    });
  });
  ASSERT_EQ(caches.size(), 2u);
  for (const auto& cache : caches) EXPECT_EQ(cache->size(), 10u);  // steps
}

// torchtitan #1117: 99 tokens went to an expert in the forward, and 98 in the second run.
TEST(RecomputeReports, ARouterMayDecideOtherwiseTheSecondTime) {
  expect_same_bits([] {
    const auto calls = std::make_shared<int>(0);
    return function_case([calls](FunctionNetImpl& net, const at::Tensor& x) {
      const auto scores = torch::tanh(net.a(x));
      const auto threshold = scores.mean().item<double>() + 0.1 * (++*calls % 2);
      const auto chosen = (scores.select(1, 0) > threshold).nonzero().squeeze(1);
      return net.b(torch::gelu(scores.index_add(0, chosen, scores.index_select(0, chosen))));
    });
  });
}

/// Keeps tensors where no hook of a saved tensor sees them.
struct Hidden : torch::autograd::Function<Hidden> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->saved_data["e"] = x.clamp(-4, 4).exp();
    context->saved_data["list"] = std::vector<at::Tensor>{x.detach(), x.detach() * 2};
    return context->saved_data["e"].toTensor() * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto list = context->saved_data["list"].toTensorVector();
    return {gradients[0] * context->saved_data["e"].toTensor() * (1 + list[1] - list[0])};
  }
};

// pytorch #191236
TEST(RecomputeReports, AFunctionMayKeepTensorsThatNoHookSees) {
  expect_same_bits([] {
    return function_case([](FunctionNetImpl& net, const at::Tensor& x) {
      return net.b(torch::gelu(Hidden::apply(torch::tanh(net.a(x)))));
    });
  });
}

// guided-diffusion #167, OLMo-core #828
TEST(RecomputeReports, MasksOfDropoutAreTheSameWhateverIsDrawnBetween) {
  const auto one = function_case([](FunctionNetImpl& net, const at::Tensor& x) {
    return net.b(torch::dropout(torch::gelu(net.a(torch::dropout(x, 0.3, true))), 0.5, true));
  });
  const auto x = torch::ones({4, 8});
  std::vector<at::Tensor> gradients;
  for (const bool recompute : {false, true}) {
    torch::manual_seed(5);
    const auto loss = testing::forward(one, x, recompute).sum();
    torch::manual_seed(77);
    torch::randn({13});
    loss.backward();
    gradients.push_back(one.module->as<FunctionNetImpl>()->a->weight.grad().clone());
    one.module->zero_grad();
  }
  EXPECT_EQ(testing::difference_in_bits(gradients[1], gradients[0]), "");
}

// DeepSpeed #8148: checkpoints had frozen parameters of shape [0].
TEST(RecomputeReports, FrozenParametersKeepTheirValues) {
  const auto one =
      function_case([](FunctionNetImpl& net, const at::Tensor& x) { return net.b(torch::gelu(net.a(x))); });
  auto& net = *one.module->as<FunctionNetImpl>();
  for (auto& parameter : net.a->parameters()) parameter.requires_grad_(false);
  const auto before = net.a->weight.clone();
  const auto x = torch::ones({4, 8});
  for (int step = 0; step < 3; ++step) {
    testing::forward(one, x, true).sum().backward();
    EXPECT_EQ(testing::difference_in_bits(net.a->weight, before), "");
    EXPECT_FALSE(net.a->weight.grad().defined());
    EXPECT_TRUE(net.b->weight.grad().defined());
  }
}

}  // namespace
}  // namespace muster
