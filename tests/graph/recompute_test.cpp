#include "muster/graph/recompute.h"

#include <gtest/gtest.h>

#include "graph/recompute_steps.h"
#include "muster/base/error.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

using testing::expect_same_bits;
using testing::forward;
using testing::function_case;
using testing::FunctionNetImpl;
using testing::RecomputeCase;

TEST(Recompute, GivesTheSameBits) {
  for (const auto& [name, make] : testing::recompute_cases()) {
    SCOPED_TRACE(name);
    expect_same_bits(make);
  }
}

TEST(Recompute, GivesTheSameBitsUnderAutocast) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const auto& [name, make] : testing::recompute_cases()) {
      SCOPED_TRACE(std::string(name) + " " + c10::toString(dtype));
      expect_same_bits(make, dtype, 3);
    }
}

using Functions = std::vector<std::pair<const char*, FunctionNetImpl::Function>>;

void expect_same_bits(const Functions& functions) {
  for (const auto& [name, f] : functions) {
    SCOPED_TRACE(name);
    expect_same_bits([&] { return function_case(f); }, {}, 3);
  }
}

TEST(Recompute, FollowsWritesInPlace) {
  expect_same_bits(Functions{{"a chain in place",
                              [](FunctionNetImpl& n, at::Tensor x) {
                                auto y = n.a(x);
                                y.mul_(2).add_(x).sub_(0.1);
                                return n.b(y.tanh_());
                              }},
                             {"parts in place",
                              [](FunctionNetImpl& n, at::Tensor x) {
                                auto y = n.a(x) * 1.5;
                                y.select(1, 2).mul_(3);
                                y.slice(1, 4, 6).exp_();
                                return n.b(y * y.sigmoid());
                              }},
                             {"memory made empty and filled",
                              [](FunctionNetImpl& n, at::Tensor x) {
                                const auto y = n.a(x);
                                auto all = torch::empty({2, 4, 8});
                                all[0].copy_(y);
                                all[1].copy_(y.exp());
                                return n.b(all.sum(0) * all.prod(0).sigmoid());
                              }},
                             {"memory made empty and filled by a pointer",
                              [](FunctionNetImpl& n, at::Tensor x) {
                                auto weights = torch::empty({8});
                                for (int i = 0; i < 8; ++i) weights.data_ptr<float>()[i] = 0.1f * i;
                                return n.b(torch::tanh(n.a(x) * weights.mul(2)) * weights);
                              }},
                             {"data()", [](FunctionNetImpl& n, at::Tensor x) {
                                auto y = n.a(x).exp();
                                auto other = y.data().clone();
                                other.data().mul_(0.5);
                                return n.b(y * other);
                              }}});
}

TEST(Recompute, FollowsListsAndViews) {
  expect_same_bits(Functions{
      {"lists",
       [](FunctionNetImpl& n, at::Tensor x) {
         const auto parts = n.a(x).chunk(4, 1);
         const auto y = torch::cat({parts[3].exp(), parts[0], parts[2] * parts[1], parts[1].tanh()}, 1);
         return n.b(torch::stack({y, y.sin()}).unbind(0)[1] * y);
       }},
      {"views of views",
       [](FunctionNetImpl& n, at::Tensor x) {
         const auto y = n.a(x).view({2, 2, 8}).transpose(0, 2).exp();
         return n.b((y.permute({2, 1, 0}).reshape({4, 8}) * x).t().contiguous().t());
       }},
      {"an index of values",
       [](FunctionNetImpl& n, at::Tensor x) {
         auto y = n.a(x).tanh();
         const auto mask = y > 0;
         y = y.masked_fill(mask, 0.5).index_put({torch::tensor({0, 2})}, x.index({torch::tensor({1, 3})}) * y.exp()[0]);
         return n.b(y * y);
       }},
      {"without gradients",
       [](FunctionNetImpl& n, at::Tensor x) {
         auto y = n.a(x);
         at::Tensor scale;
         {
           const at::NoGradGuard no_grad;
           scale = y.abs().amax() + 1;
         }
         return n.b((y / scale).tanh() * scale);
       }},
      {"a number read by the host", [](FunctionNetImpl& n, at::Tensor x) {
         const auto y = n.a(x).sigmoid();
         return n.b(y * y.sum().item<float>());
       }}});
}

TEST(Recompute, FollowsRandomDraws) {
  expect_same_bits(Functions{
      {"random draws",
       [](FunctionNetImpl& n, at::Tensor x) {
         auto y = n.a(x) + torch::randn({4, 8}) * 0.1;
         y = torch::dropout(torch::alpha_dropout(y, 0.1, true), 0.3, true);
         return n.b(y * torch::rand_like(y) * torch::bernoulli(torch::full({8}, 0.5)));
       }},
      {"attention",
       [](FunctionNetImpl& n, at::Tensor x) {
         const auto y = n.a(x).view({1, 2, 4, 4});
         return n.b(torch::scaled_dot_product_attention(y, y.exp(), y.tanh(), {}, 0.2).reshape({4, 8}));
       }},
      {"a generator of the program",
       [](FunctionNetImpl& n, at::Tensor x) {
         auto generator = at::detail::createCPUGenerator(5);
         return n.b(n.a(x).tanh() * torch::rand({8}, generator));
       }},
      {"a norm of the weight",
       [](FunctionNetImpl& n, at::Tensor x) {
         const auto w = n.a->weight * (2 / n.a->weight.norm(2, {1}, true));
         return n.b(torch::linear(x, w).tanh());
       }},
      {"gradients in the forward", [](FunctionNetImpl& n, at::Tensor x) {
         const auto in = x.clone().requires_grad_(true);
         const auto y = n.a(in).tanh().pow(2).sum();
         const auto slope = torch::autograd::grad({y}, {in}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
         return n.b(in * slope.pow(2).exp());
       }}});
}

/// The losses and all gradients of a loop body, plain and recomputed.
void expect_same_gradients(const FunctionNetImpl::Function& f,
                           const std::function<std::vector<at::Tensor>(const RecomputeCase&, bool recompute)>& body) {
  std::vector<std::vector<at::Tensor>> results;
  for (const bool recompute : {false, true}) {
    torch::manual_seed(3);
    const auto one = function_case(f);
    torch::manual_seed(9);
    results.push_back(body(one, recompute));
    for (const auto& parameter : one.module->parameters()) results.back().push_back(parameter.grad());
  }
  for (size_t i = 0; i < results[0].size(); ++i)
    EXPECT_EQ(testing::difference_in_bits(results[1].at(i), results[0][i]), "") << "value " << i;
}

at::Tensor smooth(FunctionNetImpl& n, at::Tensor x) { return n.b(torch::dropout(n.a(x).tanh(), 0.3, true)).exp(); }

TEST(Recompute, KeepsAGraphForSeveralBackwards) {
  expect_same_gradients(smooth, [](const RecomputeCase& one, bool recompute) {
    const auto loss = forward(one, torch::ones({4, 8}), recompute).sum();
    loss.backward({}, /*keep_graph=*/true);
    loss.backward({}, /*keep_graph=*/true);
    loss.backward();
    return std::vector<at::Tensor>{loss.detach()};
  });
}

TEST(Recompute, TakesSeveralForwardsBeforeABackward) {
  expect_same_gradients(smooth, [](const RecomputeCase& one, bool recompute) {
    const auto first = forward(one, torch::ones({4, 8}), recompute),
               second = forward(one, first.detach() * 0.1, recompute);
    const auto third = forward(one, first * 0.1, recompute);
    (first * second).sum().backward({}, /*keep_graph=*/true);
    third.sum().backward();
    return std::vector<at::Tensor>{third.detach()};
  });
}

TEST(Recompute, GivesGradientsOfInputsAndOfGradients) {
  expect_same_gradients(smooth, [](const RecomputeCase& one, bool recompute) {
    const auto x = torch::ones({4, 8}).requires_grad_();
    const auto y = forward(one, x, recompute).sum();
    const auto slope = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
    slope.pow(2).sum().backward();
    return std::vector<at::Tensor>{slope.detach(), x.grad()};
  });
}

TEST(Recompute, SurvivesExceptionsInTheForward) {
  expect_same_gradients(smooth, [](const RecomputeCase& one, bool recompute) {
    try {
      const auto scope = recompute ? std::make_unique<RecomputeScope>(*one.module, one.options) : nullptr;
      const auto half = one.module->as<FunctionNetImpl>()->a(torch::ones({4, 8})).exp();
      throw std::runtime_error("in the middle");
    } catch (const std::runtime_error&) {}
    torch::manual_seed(4);
    const auto loss = forward(one, torch::ones({4, 8}), recompute).sum();
    loss.backward();
    return std::vector<at::Tensor>{loss.detach()};
  });
}

TEST(Recompute, LeavesForwardsWithoutGradientsAlone) {
  const auto one = function_case(smooth);
  const auto before = graph::replay_counts();
  const at::NoGradGuard no_grad;
  forward(one, torch::ones({4, 8}), true);
  EXPECT_EQ(graph::replay_counts().recorded, before.recorded);
}

TEST(Recompute, ReplaysABlockOnceAndOnlyWhatIsNeeded) {
  const auto one = function_case([](FunctionNetImpl& n, at::Tensor x) {
    const auto y = n.a(x).tanh();  // the region of a: addmm, tanh
    (y * 7).cos();                 // used by nothing
    return n.b(y).sum();           // the region of b: addmm, sum; nothing of them is saved but what went in
  });
  const auto before = graph::replay_counts();
  forward(one, torch::ones({4, 8}), true).backward();
  const auto after = graph::replay_counts();
  EXPECT_EQ(after.replays - before.replays, 1);
  EXPECT_EQ(after.replayed - before.replayed, 2);
}

TEST(Recompute, RefusesInputsThatWereChangedInPlace) {  // MU586
  const auto one = function_case([](FunctionNetImpl& n, at::Tensor x) { return n.b(n.a(x).tanh()).sum(); });
  const auto x = torch::ones({4, 8});
  const auto loss = forward(one, x, true);
  x.add_(1);
  try {
    loss.backward();
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.id(), "MU586");
    EXPECT_NE(error.message().find("block 'a'"), std::string::npos) << error.what();
  }
  const auto other = forward(one, torch::ones({4, 8}), true);
  {
    const at::NoGradGuard no_grad;
    one.module->as<FunctionNetImpl>()->b->weight.mul_(2);
  }
  EXPECT_EQ(testing::thrown_id([&] { other.backward(); }), "MU586");
}

TEST(Recompute, ListsTheBlocksThatThereAre) {  // MU148
  const auto one = function_case(smooth);
  EXPECT_EQ(testing::thrown_id([&] { RecomputeScope(*one.module, {.blocks = {"Conv"}}); }), "MU148");
  EXPECT_EQ(testing::thrown_id([&] { RecomputeScope(*one.module, {.blocks = {"a"}, .every = 0}); }), "MU589");
}

}  // namespace
}  // namespace muster
