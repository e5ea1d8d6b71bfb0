#include "muster/optim/detail/norm.h"

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<at::Tensor> three() {
  torch::manual_seed(3);
  return {torch::randn({33, 5}), at::Tensor(), torch::randn({7}, torch::kDouble), torch::randn({0}),
          torch::randn({4, 4, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast)};
}

at::Tensor joined() {
  std::vector<at::Tensor> parts;
  for (const auto& tensor : three())
    if (tensor.defined()) parts.push_back(tensor.flatten().to(at::kDouble));
  return torch::cat(parts);
}

TEST(Norm, PowerSumsGiveTheNormOfAll) {
  for (const double p : {0.5, 1.0, 2.0, 3.0}) {
    const double norm = norm_from_power_sum(power_sum(three(), p), p);
    EXPECT_NEAR(norm / joined().norm(p).item<double>(), 1.0, 1e-6) << p;
  }
  EXPECT_NEAR(power_sum(three(), kInfinity), joined().abs().max().item<double>(), 1e-12);
}

TEST(Norm, NothingHasNormZero) {
  EXPECT_EQ(power_sum({}, 2.0), 0.0);
  EXPECT_EQ(power_sum({at::Tensor(), torch::empty({0})}, kInfinity), 0.0);
}

TEST(Norm, NonFiniteElementsShow) {
  const auto bad = torch::tensor({1.0f, std::nanf("")}), big = torch::tensor({1.0f, INFINITY});
  EXPECT_TRUE(std::isnan(power_sum({bad}, 2.0)));
  EXPECT_TRUE(std::isnan(power_sum({torch::ones({3}), bad}, kInfinity)));
  EXPECT_TRUE(std::isinf(power_sum({big}, 2.0)));
}

TEST(Norm, HalfPrecisionIsSummedWide) {
  const auto tensor = torch::full({100000}, 0.1, torch::kBFloat16);
  const double one = tensor[0].item<double>();
  EXPECT_NEAR(power_sum({tensor}, 2.0) / (100000 * one * one), 1.0, 1e-4);
}

TEST(Norm, IsTheSameHoweverTensorsAreCutAtBlocks) {
  torch::manual_seed(5);
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const auto whole = (torch::randn({1003}) * torch::pow(10.0, torch::randint(-9, 9, {1003}))).to(dtype);
    for (const double p : {0.5, 1.0, 2.0, 3.0, kInfinity})
      for (const int64_t cut : {64, 448, 960}) {
        SCOPED_TRACE(std::to_string(p) + " " + std::to_string(cut));
        const auto first = whole.narrow(0, 0, cut), rest = whole.narrow(0, cut, 1003 - cut);
        EXPECT_EQ(power_sum({rest, first}, p), power_sum({whole}, p));
        const auto one = unrounded_power_sum({first}, p), other = unrounded_power_sum({rest, torch::zeros({64})}, p);
        EXPECT_EQ(rounded_power_sum(std::isinf(p) ? torch::maximum(one, other) : one + other, p),
                  power_sum({whole}, p));
      }
  }
}

TEST(Norm, ReadsMemoryInItsOrder) {
  const auto image = torch::randn({2, 3, 5, 7}).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(power_sum({image}, 2.0), power_sum({image.permute({0, 2, 3, 1}).flatten()}, 2.0));
  const auto spread = torch::ones({1}).expand({100});
  EXPECT_EQ(power_sum({spread}, 1.0), 100.0);
}

TEST(Norm, CoefficientIsThatOfLibTorch) {
  auto parameter = torch::ones({50}).requires_grad_();
  parameter.mutable_grad() = torch::arange(50).to(torch::kFloat);
  const double norm = norm_from_power_sum(power_sum({parameter.grad()}, 2.0), 2.0);
  const auto mine = parameter.grad() * clip_coefficient(norm, 1.5);
  EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(parameter, 1.5), norm, 1e-4);
  EXPECT_TRUE(torch::allclose(mine, parameter.grad(), 1e-6));
  EXPECT_EQ(clip_coefficient(0.5, 1.0), 1.0);
  EXPECT_TRUE(std::isnan(clip_coefficient(std::nan(""), 1.0)));
}

}  // namespace
}  // namespace muster::optim
