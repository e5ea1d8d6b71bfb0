#include "hook/operator_override.h"

#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hook/watched_storage.h"

namespace muster::hook {
namespace {

/// Multiplies by three where it was asked to add.
struct Tripling final : OperatorOverride {
  bool run(std::string_view op, size_t arguments, torch::jit::Stack& stack) override {
    seen += std::string(op) + " ";
    if (op != "aten::add") return false;
    auto result = torch::jit::last(stack, arguments)[0].toTensor() * 3;
    torch::jit::drop(stack, arguments);
    torch::jit::push(stack, std::move(result));
    return true;
  }
  std::string seen;
};

TEST(OperatorOverride, RunsInPlaceOfTheOperator) {
  install_storage_interceptors();
  const auto operator_override = std::make_shared<Tripling>();
  auto marked = torch::arange(4).to(torch::kFloat);
  const auto handle = marked;
  mark_for_override(marked, operator_override);
  EXPECT_EQ(override_of(handle), operator_override);
  const auto other = torch::ones({4}).requires_grad_();
  const auto sum = other + marked;  // its result comes from the override, with a graph
  EXPECT_TRUE(torch::equal(sum, torch::full({4}, 3.0)));
  sum.sum().backward();
  EXPECT_TRUE(torch::equal(other.grad(), torch::full({4}, 3.0)));
  EXPECT_TRUE(torch::equal(marked * 2, torch::tensor({0.0f, 2.0f, 4.0f, 6.0f})));  // left to LibTorch
  EXPECT_TRUE(
      torch::equal(marked.view({2, 2}) + 1, torch::tensor({{0.0f, 3.0f}, {6.0f, 9.0f}})));  // views carry the mark
  EXPECT_NE(operator_override->seen.find("aten::mul"), std::string::npos);
}

TEST(OperatorOverride, ValuesAndWritesStay) {
  install_storage_interceptors();
  auto marked = torch::arange(4).to(torch::kFloat);
  mark_for_override(marked, std::make_shared<Tripling>());
  mark_for_override(marked, std::make_shared<Tripling>());
  marked.mul_(2);
  EXPECT_TRUE(torch::equal(marked.clone(), torch::tensor({0.0f, 2.0f, 4.0f, 6.0f})));
  const auto ordinary = torch::ones({4});
  EXPECT_EQ(override_of(ordinary), nullptr);
  EXPECT_TRUE(torch::equal(ordinary + ordinary, torch::full({4}, 2.0)));
  marked.set_data(torch::ones({4}));  // elsewhere: the mark has ended
  EXPECT_EQ(override_of(marked), nullptr);
}

}  // namespace
}  // namespace muster::hook
