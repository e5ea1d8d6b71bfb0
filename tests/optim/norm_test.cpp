#include "muster/optim/norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

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
    const double norm = norm_from_power_sum(power_sum(three(), p).item<double>(), p);
    EXPECT_NEAR(norm / joined().norm(p).item<double>(), 1.0, 1e-6) << p;
  }
  EXPECT_NEAR(power_sum(three(), kInfinity).item<double>(), joined().abs().max().item<double>(), 1e-12);
  EXPECT_NEAR(power_sum(three(), -kInfinity).item<double>(), joined().abs().min().item<double>(), 1e-12);
  EXPECT_EQ(power_sum({torch::tensor({0.0f, 2.0f, 3.0f})}, 0.0).item<double>(), 2.0);
}

TEST(Norm, NothingHasNormZero) {
  EXPECT_EQ(power_sum({}, 2.0).item<double>(), 0.0);
  EXPECT_EQ(power_sum({at::Tensor(), torch::empty({0})}, kInfinity).item<double>(), 0.0);
}

TEST(Norm, NonFiniteElementsShow) {
  const auto bad = torch::tensor({1.0f, std::nanf("")}), big = torch::tensor({1.0f, INFINITY});
  EXPECT_TRUE(std::isnan(power_sum({bad}, 2.0).item<double>()));
  EXPECT_TRUE(std::isnan(power_sum({torch::ones({3}), bad}, kInfinity).item<double>()));
  EXPECT_TRUE(std::isinf(power_sum({big}, 2.0).item<double>()));
}

TEST(Norm, HalfPrecisionIsSummedWide) {
  const auto tensor = torch::full({100000}, 0.1, torch::kBFloat16);
  const double one = tensor[0].item<double>();
  EXPECT_NEAR(power_sum({tensor}, 2.0).item<double>() / (100000 * one * one), 1.0, 1e-4);
}

TEST(Norm, CoefficientIsThatOfLibTorch) {
  auto parameter = torch::ones({50}).requires_grad_();
  parameter.mutable_grad() = torch::arange(50).to(torch::kFloat);
  const double norm = norm_from_power_sum(power_sum({parameter.grad()}, 2.0).item<double>(), 2.0);
  const auto mine = parameter.grad() * clip_coefficient(norm, 1.5);
  EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(parameter, 1.5), norm, 1e-4);
  EXPECT_TRUE(torch::allclose(mine, parameter.grad(), 1e-6));
  EXPECT_EQ(clip_coefficient(0.5, 1.0), 1.0);
  EXPECT_TRUE(std::isnan(clip_coefficient(std::nan(""), 1.0)));
}

}  // namespace
}  // namespace muster::optim
