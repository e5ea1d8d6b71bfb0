#include <memory>
#include <string_view>

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/checkpoint/state_dict.h"

namespace {

using muster::copy_values;

constexpr int64_t kLarge = 300'007;  // elements: more than is worth streaming, and no multiple of a cache line

TEST(CopyValues, GiveTheSameAsLibTorchsCopyOne) {
  const auto base = torch::randn({kLarge + 1});
  const std::vector<torch::Tensor> sources = {
      base.slice(0, 1),  // begins in the middle of a cache line
      torch::randn({3}),
      torch::randn({0}),
      torch::tensor(2.5),
      torch::randn({700, 500}).t(),              // not in row-major order
      torch::randn({500, 700}, torch::kDouble),  // to be converted
      torch::conj(torch::randn({400, 300}, torch::kComplexFloat)),
      torch::randint(0, 2, {kLarge * 4}).to(torch::kBool),
  };
  std::vector<std::pair<torch::Tensor, torch::Tensor>> pairs;
  std::vector<torch::Tensor> expected;
  for (const auto& source : sources) {
    const auto type = source.scalar_type() == torch::kDouble ? torch::kFloat : source.scalar_type();
    pairs.emplace_back(torch::full(source.sizes(), 1, type), source);
    expected.push_back(torch::full(source.sizes(), 1, type).copy_(source));
  }
  pairs.emplace_back(torch::zeros({500, 700}).t(), torch::randn({700, 500}));
  expected.push_back(pairs.back().second);
  copy_values(pairs);
  for (std::size_t i = 0; i < pairs.size(); ++i) EXPECT_TRUE(torch::equal(pairs[i].first, expected[i])) << "pair " << i;
}

int copies_by_operator = 0;

std::unique_ptr<at::ObserverContext> count_copies(const at::RecordFunction& function) {
  copies_by_operator += std::string_view(function.name()) == "aten::copy_";
  return nullptr;
}

TEST(CopyValues, GoAsBytesWhereTensorsAreOrdinaryAndLarge) {
  const auto watch =
      at::addThreadLocalCallback(at::RecordFunctionCallback(count_copies).scopes({at::RecordScope::FUNCTION}));
  const auto by_operator = [](const torch::Tensor& to, const torch::Tensor& from) {
    copies_by_operator = 0;
    copy_values({{to, from}});
    return copies_by_operator;
  };
  const auto large = torch::randn({kLarge});
  EXPECT_EQ(by_operator(torch::zeros({kLarge}), large), 0);
  EXPECT_EQ(by_operator(torch::zeros({kLarge}, torch::requires_grad()), large), 0);
  EXPECT_EQ(by_operator(torch::zeros({kLarge}, torch::kDouble), large), 1);
  EXPECT_EQ(by_operator(torch::zeros({kLarge, 2}).select(1, 0), large), 1);
  {
    const c10::InferenceMode inference;
    EXPECT_EQ(by_operator(torch::zeros({kLarge}), large), 0);
  }
  at::removeCallback(watch);
}

TEST(CopyValues, CountAsAChangeAndAreNotRecorded) {
  auto large = torch::zeros({kLarge}, torch::requires_grad()), small = torch::zeros({3}, torch::requires_grad());
  const auto version = large._version();
  copy_values({{large, torch::ones({kLarge})}, {small, torch::ones({3}, torch::requires_grad())}});
  EXPECT_GT(large._version(), version);
  EXPECT_FALSE(large.grad_fn());
  EXPECT_FALSE(small.grad_fn());
  EXPECT_EQ(large.sum().item<float>(), kLarge);
}

TEST(CopyValues, OfTensorsThatShareMemoryAreCopiedInOrder) {
  auto first = torch::zeros({2 * kLarge});
  auto second = first.slice(0, kLarge / 2, kLarge / 2 + kLarge);
  copy_values({{first, torch::full({2 * kLarge}, 1.0)}, {second, torch::full({kLarge}, 2.0)}});
  EXPECT_TRUE(torch::equal(second, torch::full({kLarge}, 2.0)));
  EXPECT_EQ(first.sum().item<float>(), 3 * kLarge);
  copy_values({{second, torch::full({kLarge}, 2.0)}, {first, torch::full({2 * kLarge}, 1.0)}});
  EXPECT_TRUE(torch::equal(first, torch::full({2 * kLarge}, 1.0)));
}

TEST(CopyValues, OntoThemselvesChangeNothing) {
  const auto values = torch::randn({kLarge});
  const auto before = values.clone();
  copy_values({{values, values}});
  EXPECT_TRUE(torch::equal(values, before));
}

}  // namespace
