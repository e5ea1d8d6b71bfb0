#include <gtest/gtest.h>
#include <torch/library.h>

#include "graph/recompute_steps.h"
#include "muster/base/error.h"
#include "parallel/counted_memory.h"

// What blocks read changes between forward and backward, or is laid out in ways that a replay has to repeat. Each of
// these was wrong once.
namespace muster {
namespace {

using testing::expect_same_bits;
using testing::forward;
using testing::function_case;
using testing::FunctionNetImpl;
using testing::RecomputeCase;

/// Makes the case from scratch for each of the two trainings, because it has a state.
void expect_same(const char* name, const std::function<RecomputeCase()>& make) {
  SCOPED_TRACE(name);
  expect_same_bits(make, {}, 4);
}

TEST(RecomputeStates, BuffersMayChangeAfterTheyWereRead) {
  expect_same("an average without gradients", [] {
    return function_case([mean = torch::zeros({8})](FunctionNetImpl& n, at::Tensor x) {
      const auto y = n.a(x).tanh() * (mean + 1);
      const at::NoGradGuard no_grad;
      const_cast<at::Tensor&>(mean).mul_(0.9).add_(y.mean(0), 0.1);
      return y;
    });
  });
  expect_same("the same by data(), from the third step on", [] {
    auto step = std::make_shared<int>(0);
    return function_case([mean = torch::ones({8}), step](FunctionNetImpl& n, at::Tensor x) {
      const auto y = n.b(n.a(x).tanh() * mean.sigmoid().exp());
      if (++*step > 2) mean.data().mul_(0.9);
      return y;
    });
  });
  expect_same("a counter", [] {
    return function_case([calls = torch::zeros({1})](FunctionNetImpl& n, at::Tensor x) {
      const auto y = n.a(x).tanh() + calls;
      calls.add_(1);
      return n.b(y * y);
    });
  });
  expect_same("a weight that is normalised in each forward", [] {
    return function_case([](FunctionNetImpl& n, at::Tensor x) {
      {
        const at::NoGradGuard no_grad;
        n.a->weight.div_(n.a->weight.norm());
      }
      return n.b(n.a(x).tanh());
    });
  });
}

TEST(RecomputeStates, StatisticsOfInstancesAreUpdatedOnce) {
  expect_same("instance norm", [] {
    torch::nn::InstanceNorm1d norm(torch::nn::InstanceNorm1dOptions(2).track_running_stats(true));
    return function_case([norm](FunctionNetImpl& n, at::Tensor x) mutable {
      return n.b(norm(n.a(x).view({2, 2, 8})).view({4, 8}).tanh()) + norm->running_mean.sum();
    });
  });
}

TEST(RecomputeStates, LayoutsAreKept) {
  expect_same("a transposed input of three dimensions", [] {
    return function_case([](FunctionNetImpl& n, at::Tensor x) {
      const auto y = n.a(x).tanh().view({2, 2, 8}).transpose(0, 1);
      return n.b(y).tanh().reshape({4, 8});
    });
  });
  expect_same("a conjugated view", [] {
    return function_case([](FunctionNetImpl& n, at::Tensor x) {
      const auto y = torch::view_as_complex(n.a(x).view({4, 4, 2})).conj();
      return n.b(torch::view_as_real(y * y).reshape({4, 8}).tanh());
    });
  });
  expect_same("a negated view", [] {
    return function_case([](FunctionNetImpl& n, at::Tensor x) {
      const auto y = torch::imag(torch::view_as_complex(n.a(x).view({4, 4, 2})).conj());
      return n.b(torch::cat({y.tanh(), y.exp()}, 1));
    });
  });
}

/// x in forward and x times the mask in backward: no operator reads the mask before it is saved.
struct Masked : torch::autograd::Function<Masked> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& mask) {
    context->save_for_backward({mask});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * context->get_saved_variables()[0], at::Tensor()};
  }
};

TEST(RecomputeStates, MemoryMayBeFilledByAPointer) {
  expect_same("zeros that only a custom Function saves", [] {
    return function_case([](FunctionNetImpl& n, at::Tensor x) {
      auto mask = torch::zeros({8});
      const auto y = n.a(x).tanh();
      mask = torch::zeros({8});
      mask.data_ptr<float>()[3] = 2;
      return n.b(Masked::apply(y, mask).exp());
    });
  });
  expect_same("zeros, from the third step on", [] {
    auto step = std::make_shared<int>(0);
    return function_case([step](FunctionNetImpl& n, at::Tensor x) {
      auto mask = torch::zeros({8});
      if (++*step > 2) mask.data_ptr<float>()[3] = 2;
      return n.b((n.a(x) + mask * 3).tanh() * mask.exp());
    });
  });
  expect_same("half by a pointer, half by an operator", [] {
    return function_case([](FunctionNetImpl& n, at::Tensor x) {
      const auto y = n.a(x).tanh();
      auto both = torch::empty({2, 8});
      for (int i = 0; i < 8; ++i) both.data_ptr<float>()[i] = 0.1f * i;
      both[1].copy_(y[0].detach());
      return n.b(y * both.prod(0).exp());
    });
  });
}

TEST(RecomputeStates, RecurrentLayersHaveWorkspaces) {
  expect_same("two layers", [] {
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(8, 8).num_layers(2));
    return function_case([lstm](FunctionNetImpl& n, at::Tensor x) mutable {
      return n.b(std::get<0>(lstm(n.a(x).view({4, 1, 8}))).view({4, 8}));
    });
  });
}

/// state += x, and x times what the state was before.
at::Tensor stateful(at::Tensor& state, const at::Tensor& x) {
  auto out = x * state;
  state.add_(x.mean(0));
  return out;
}
TORCH_LIBRARY(muster_test_states, m) { m.def("stateful(Tensor(a!) state, Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(muster_test_states, CPU, m) { m.impl("stateful", &stateful); }

TEST(RecomputeStates, OperatorsMayHaveAState) {
  expect_same("an operator that declares what it writes", [] {
    return function_case([state = torch::ones({8})](FunctionNetImpl& n, at::Tensor x) {
      static const auto op = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("muster_test_states::stateful", "")
                                 .typed<at::Tensor(at::Tensor&, const at::Tensor&)>();
      auto own = state;
      const auto y = n.a(x).tanh();
      return n.b(y * op.call(own, y.detach()));
    });
  });
}

TEST(RecomputeStates, AKeptGraphLetsGoOfReplayedTensors) {
  at::set_num_threads(1);
  const auto one = testing::recompute_case(testing::Stack(32, 4).ptr(), {64, 32}, {"RecomputeBlock"});
  forward(one, torch::ones(one.batch), true).sum().backward();  // gradients, and the comparison of the first step
  parallel::CountedMemory memory;
  const auto loss = forward(one, torch::ones(one.batch), true).sum();
  loss.backward({}, /*keep_graph=*/true);
  const auto live = memory.live();
  loss.backward({}, /*keep_graph=*/true);
  EXPECT_EQ(memory.live(), live);
}

}  // namespace
}  // namespace muster
