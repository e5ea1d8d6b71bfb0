#include <cstdlib>

#include <gtest/gtest.h>
#include <torch/library.h>

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

/// y = 2 x, below autograd and with a backward of its own: an operator that the recorder has never heard of.
at::Tensor doubled(const at::Tensor& x) { return x.mul(2); }
struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("muster_test::doubled", "");
    context->save_for_backward({x});
    return op.typed<at::Tensor(const at::Tensor&)>().call(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2 + 0 * context->get_saved_variables()[0]};
  }
};
at::Tensor doubled_autograd(const at::Tensor& x) { return Doubled::apply(x); }
at::Tensor wavy(const at::Tensor& x) { return x.sin() * x; }

/// Writes its argument, and its schema does not say so.
at::Tensor secretive(const at::Tensor& x) {
  x.mutable_data_ptr<float>()[0] += 1;
  return x.clone();
}
/// Returns another value at each call.
at::Tensor moody(const at::Tensor& x) {
  static float calls = 0;
  const auto out = at::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) out.mutable_data_ptr<float>()[i] = calls;
  ++calls;
  return out;
}

TORCH_LIBRARY(muster_test, m) {
  m.def("doubled(Tensor x) -> Tensor");
  m.def("wavy(Tensor x) -> Tensor", &wavy);
  m.def("secretive(Tensor x) -> Tensor");
  m.def("moody(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(muster_test, CPU, m) {
  m.impl("doubled", &doubled);
  m.impl("secretive", &secretive);
  m.impl("moody", &moody);
}

at::Tensor call_operator(const char* name, const at::Tensor& x) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<at::Tensor(const at::Tensor&)>().call(x);
}
TORCH_LIBRARY_IMPL(muster_test, Autograd, m) { m.impl("doubled", &doubled_autograd); }

TEST(Recompute, TakesOperatorsOfThePrograms) {
  expect_same_bits([&] {
    return function_case([&](FunctionNetImpl& n, at::Tensor x) {
      return n.b(call_operator("muster_test::wavy", call_operator("muster_test::doubled", n.a(x).tanh()).exp()));
    });
  });
}

std::string error_of(const RecomputeCase& one) {
  try {
    forward(one, torch::ones({4, 8}), true).sum().backward();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Recompute, AnOperatorThatWritesInSecretIsNamed) {  // MU588
  auto one = function_case([](FunctionNetImpl& n, at::Tensor x) {
    const auto y = n.a(x).tanh();
    return n.b(y * call_operator("muster_test::secretive", y.detach().exp()));
  });
  const auto text = error_of(one);
  EXPECT_NE(text.find("MU588"), std::string::npos) << text;
  EXPECT_NE(text.find("muster_test::secretive in block 'a' changed its argument 'x'"), std::string::npos) << text;
  one.options.check = false;
  EXPECT_EQ(error_of(one), "");
}

TEST(Recompute, AnOperatorThatDiffersIsNamed) {  // MU588
  auto one = function_case([](FunctionNetImpl& n, at::Tensor x) {
    const auto y = n.a(x).tanh();
    return n.b(y * call_operator("muster_test::moody", y.detach()));
  });
  const auto text = error_of(one);
  EXPECT_NE(text.find("MU588"), std::string::npos) << text;
  EXPECT_NE(text.find("muster_test::moody in block 'a' gave other values"), std::string::npos) << text;
  one.options.keep = {"muster_test::moody"};
  EXPECT_EQ(error_of(one), "");
}

TEST(Recompute, KeepsTheResultsOfNamedOperators) {
  const auto replayed = [](const std::vector<std::string>& keep) {
    auto make = [&] {
      auto one = testing::recompute_case(testing::Stack(8, 2).ptr(), {6, 8}, {"RecomputeBlock"});
      one.options.keep = keep;
      return one;
    };
    expect_same_bits(make, {}, 3);
    const auto one = make();
    const auto before = graph::replay_counts().replayed;
    forward(one, torch::ones({6, 8}), true).sum().backward();
    return graph::replay_counts().replayed - before;
  };
  // Of each block: addmm, gelu, addmm, add, layer norm.
  EXPECT_EQ(replayed({}), 10);
  EXPECT_EQ(replayed({"matmul"}), 6);
  EXPECT_EQ(replayed({"matmul", "aten::native_layer_norm"}), 4);
  const auto one = testing::recompute_case(testing::Stack(8, 2).ptr(), {6, 8}, {"RecomputeBlock"});
  EXPECT_EQ(testing::thrown_id([&] { RecomputeScope(*one.module, {.blocks = {"auto"}, .keep = {"aten::gellu"}}); }),
            "MU589");
}

TEST(Recompute, KeptResultsMayBeWrittenInPlace) {
  expect_same_bits([] {
    auto one = function_case([](FunctionNetImpl& n, at::Tensor x) { return n.b(n.a(x).mul_(2).tanh_()); });
    one.options.keep = {"matmul"};
    return one;
  });
}

/// How many replays a backward of a stack of five blocks takes.
int64_t replays_of(const RecomputeOptions& options) {
  auto one = testing::recompute_case(testing::Stack(8, 5).ptr(), {6, 8}, {});
  one.options = options;
  const auto before = graph::replay_counts().replays;
  forward(one, torch::ones({6, 8}), true).sum().backward();
  return graph::replay_counts().replays - before;
}

TEST(Recompute, EveryNthBlock) {
  EXPECT_EQ(replays_of({.blocks = {"auto"}}), 5);
  EXPECT_EQ(replays_of({.blocks = {"auto"}, .every = 2}), 3);
  EXPECT_EQ(replays_of({.blocks = {"RecomputeBlock"}, .every = 5}), 1);
}

TEST(Recompute, BlocksAreChosenByType) {
  EXPECT_EQ(replays_of({.types = {typeid(testing::RecomputeBlockImpl)}}), 5);
  EXPECT_EQ(replays_of({.blocks = {"blocks.[13]"}}), 2);
  EXPECT_EQ(testing::thrown_id([] { replays_of({.types = {typeid(torch::nn::Conv2dImpl)}}); }), "MU148");
}

TEST(Recompute, IsKeptOutByItsVariable) {                  // MU587
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a process that has not installed it yet
  const auto one = function_case([](FunctionNetImpl& n, at::Tensor x) { return n.b(n.a(x)); });
  const auto refused = [&] {
    setenv("MUSTER_NO_RECOMPUTE", "1", 1);
    const auto id = testing::thrown_id([&] { RecomputeScope(*one.module, one.options); });
    std::_Exit(id == "MU587" ? 0 : 1);
  };
  EXPECT_EXIT(refused(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace muster
