#include <functional>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/graph/recompute.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

/// Values of a function by hand: losses, gradients, the next draw of the generator.
std::vector<at::Tensor> by_hand(
    const std::function<at::Tensor(torch::nn::Linear& layer, const at::Tensor& x, bool recompute)>& f) {
  std::vector<at::Tensor> results[2];
  for (const bool again : {false, true}) {
    torch::manual_seed(2);
    torch::nn::Linear layer(8, 8);
    const auto x = torch::randn({4, 8}).requires_grad_();
    const auto loss = f(layer, x, again).sum();
    loss.backward();
    results[again] = {loss.detach(), x.grad(), layer->weight.grad(), layer->bias.grad(), torch::rand({2})};
  }
  for (size_t i = 0; i < results[0].size(); ++i)
    EXPECT_EQ(testing::difference_in_bits(results[1][i], results[0][i]), "") << "value " << i;
  return results[1];
}

template <class F, class... Inputs>
auto maybe(bool again, const F& f, const Inputs&... inputs) {
  return again ? recompute(f, inputs...) : f(inputs...);
}

TEST(RecomputeFunction, GivesTheSameBits) {
  by_hand([](auto& layer, const at::Tensor& x, bool again) {
    const auto f = [&](const at::Tensor& in) { return torch::dropout(layer(in).tanh(), 0.4, true).exp(); };
    return maybe(again, f, maybe(again, f, x));
  });
}

TEST(RecomputeFunction, TakesAnyValuesMadeOfTensors) {
  struct Pair {
    at::Tensor one, two;
    double scale;
  };
  by_hand([](auto& layer, const at::Tensor& x, bool again) {
    const auto f = [&](const Pair& pair, const std::vector<at::Tensor>& list, int times) {
      return std::make_tuple(Pair{layer(pair.one).exp(), pair.two.tanh(), pair.scale * times}, list.at(0) * list.at(1));
    };
    const auto [pair, product] = maybe(again, f, Pair{x, x * 2, 0.5}, std::vector<at::Tensor>{x.sin(), x.cos()}, 3);
    return pair.one * pair.two * pair.scale + product.exp();
  });
}

TEST(RecomputeFunction, Nests) {
  by_hand([](auto& layer, const at::Tensor& x, bool again) {
    const auto inner = [&](const at::Tensor& in) { return torch::dropout(layer(in), 0.3, true).tanh().exp(); };
    const auto outer = [inner, again](const at::Tensor& in) { return maybe(again, inner, in.sin() * in).cos() * in; };
    return maybe(again, outer, maybe(again, outer, x));
  });
}

TEST(RecomputeFunction, KeepsAGraph) {
  by_hand([](auto& layer, const at::Tensor& x, bool again) {
    const auto f = [&](const at::Tensor& in) { return layer(in).tanh().exp(); };
    const auto y = maybe(again, f, x);
    y.sum().backward({}, /*keep_graph=*/true);
    const auto slope = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return y + slope.pow(2);
  });
}

TEST(RecomputeFunction, StopsEarly) {
  int calls = 0, ends = 0;
  const auto x = torch::ones({3}).requires_grad_();
  const auto y = recompute(
      [&](const at::Tensor& in) {
        ++calls;
        const auto out = in.exp().sin();
        const auto sum = out + 1;
        ++ends;
        return sum;
      },
      x);
  y.sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(ends, 1);
}

TEST(RecomputeFunction, NamesTheFirstDifference) {  // MU592
  const auto error = [](const auto& f) {
    const auto x = torch::ones({4, 2}).requires_grad_();
    const auto loss = recompute(f, x).sum();
    try {
      loss.backward();
    } catch (const UsageError& e) {
      return e.id() + e.message();
    }
    return std::string();
  };
  int calls = 0;
  auto text = error([&](const at::Tensor& in) { return in.narrow(0, 0, 4 - calls++).exp(); });
  EXPECT_NE(text.find("MU592"), std::string::npos) << text;
  EXPECT_NE(text.find("1st tensor"), std::string::npos) << text;
  EXPECT_NE(text.find("[3, 2]"), std::string::npos) << text;
  calls = 0;
  text = error([&](const at::Tensor& in) { return calls++ == 0 ? in.exp().exp() : in.exp(); });
  EXPECT_NE(text.find("MU592"), std::string::npos) << text;
  EXPECT_NE(text.find("saved 2 tensors"), std::string::npos) << text;
}

TEST(RecomputeFunction, RefusesInputsThatWereChanged) {  // MU586
  auto x = torch::ones({4}).requires_grad_();
  const auto y = x * 2;
  const auto loss = recompute([](const at::Tensor& in) { return in.exp(); }, y).sum();
  y.detach().add_(1);
  EXPECT_EQ(testing::thrown_id([&] { loss.backward(); }), "MU586");
}

// Each of these was wrong once.

TEST(RecomputeFunction, LeavesNoCastsOfOldWeights) {
  std::vector<at::Tensor> losses[2];
  for (const bool again : {false, true}) {
    torch::manual_seed(2);
    torch::nn::Linear layer(8, 8);
    for (int step = 0; step < 3; ++step) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      const auto f = [&layer](const at::Tensor& in) { return layer(in).tanh(); };
      const auto loss = maybe(again, f, torch::ones({4, 8})).to(at::kFloat).sum();
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      loss.backward();
      const at::NoGradGuard no_grad;
      layer->weight.sub_(layer->weight.grad());
      losses[again].push_back(loss.detach());
    }
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(testing::difference_in_bits(losses[1][i], losses[0][i]), "") << i;
}

TEST(RecomputeFunction, WaitsForTheValuesOfASavedTensor) {
  by_hand([](auto& layer, const at::Tensor& x, bool again) {
    const auto f = [&](const at::Tensor& in) { return torch::rrelu(layer(in), 0.1, 0.4, /*training=*/true); };
    return maybe(again, f, x);
  });
}

TEST(RecomputeFunction, MayRunABackwardOfItsOwn) {
  by_hand([](auto& layer, const at::Tensor& x, bool again) {
    const auto inner = [&layer](const at::Tensor& in) { return layer(in).tanh().exp(); };
    const auto outer = [inner, again](const at::Tensor& in) {
      const auto y = maybe(again, inner, in).sum();
      return in * torch::autograd::grad({y}, {in}, {}, true, /*create_graph=*/true)[0];
    };
    return maybe(again, outer, x);
  });
}

}  // namespace
}  // namespace muster
