#include "optim/device_norm.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/optim/clip.h"
#include "muster/optim/detail/norm.h"
#include "muster/sim/sim.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster::optim {
namespace {

using muster::testing::difference_in_bits;

at::Tensor as_tensor(const ExactSum::Words& words) {
  return at::tensor(at::ArrayRef<int64_t>(words.data(), words.size()));
}

/// The same bits, or both not a number.
void expect_rounded(const ExactSum::Words& words, const std::string& what) {
  const double wanted = ExactSum::value(words), got = rounded(as_tensor(words)).item<double>();
  if (std::isnan(wanted)) EXPECT_TRUE(std::isnan(got) && !std::signbit(got)) << what;
  else EXPECT_EQ(got, wanted) << what;
}

TEST(DeviceNorm, RoundsWordsAsTheLoopsDo) {
  constexpr int64_t kFull = (int64_t{1} << 32) - 1;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    torch::manual_seed(seed);
    ExactSum::Words words{};
    const auto draw = at::randint(0, 1 << 30, {70}, at::kLong), kind = at::randint(0, 6, {70}, at::kLong);
    const auto first = static_cast<size_t>(seed % 66);
    for (size_t i = first; i < std::min<size_t>(first + 1 + seed % 40, 67); ++i) {
      const auto at = static_cast<int64_t>(i), number = draw[at].item<int64_t>();
      switch (kind[at].item<int64_t>()) {
        case 0: words[i] = number; break;
        case 1: words[i] = number << 32 | number; break;
        case 2: break;
        default: words[i] = kFull;  // passes a carry on
      }
    }
    expect_rounded(words, "seed " + std::to_string(seed));
  }
  ExactSum::Words words{};
  expect_rounded(words, "nothing");
  words.fill(kFull);
  words[0] += 1;
  words[ExactSum::kDigits] = words[ExactSum::kDigits + 1] = 0;
  expect_rounded(words, "a carry through all digits");
  words[ExactSum::kDigits] = 3;
  expect_rounded(words, "infinity");
  words[ExactSum::kDigits + 1] = 1;
  expect_rounded(words, "not a number");
}

class DeviceNorms : public ::testing::Test {
 protected:
  DeviceNorms() {
    sim::install();
    sim::set_seed(3);
    for (int i = 0; i < 3; ++i) {
      parameters.push_back(torch::full({5 + 70 * i, 3}, 1.0).requires_grad_());
      parameters.back().mutable_grad() =
          at::arange(parameters.back().numel(), at::kFloat).mul(0.37 + i).sin().view_as(parameters.back());
    }
    for (const auto& parameter : parameters) {
      there.push_back(parameter.detach().to(sim::device(0)).requires_grad_());
      there.back().mutable_grad() = parameter.grad().to(sim::device(0));
    }
  }
  std::vector<at::Tensor> parameters, there;
};

TEST_F(DeviceNorms, AreReadWhenTheyAreLookedAt) {
  for (const double p : {2.0, 1.0, double{INFINITY}}) {
    const double wanted = clip_grad_norm_(parameters, 0.7, {.norm_type = p});
    sim::reset_stats();
    const auto norm = clip_grad_norm_(there, 0.7, {.norm_type = p});
    EXPECT_EQ(sim::stats().all_host_waits(), 0) << p;
    EXPECT_EQ(norm.on_device().device(), sim::device(0));
    EXPECT_EQ(norm, wanted) << p;
    EXPECT_EQ(norm * 1.0, wanted);
    EXPECT_EQ(sim::stats().all_host_waits(), 1) << "it is read once";
    for (size_t i = 0; i < parameters.size(); ++i)
      EXPECT_EQ(difference_in_bits(there[i].grad().cpu(), parameters[i].grad()), "") << p;
  }
}

TEST_F(DeviceNorms, OfBfloat16AreScaledInFloat) {
  at::Tensor gradient = at::arange(100, at::kFloat).sin().to(at::kBFloat16);
  const auto wanted = gradient * 0.3F, on_device = gradient.to(sim::device(0));
  scale_by(on_device, at::full({}, 0.3, at::TensorOptions(at::kDouble).device(sim::device(0))));
  EXPECT_EQ(difference_in_bits(on_device.cpu(), wanted), "");
}

TEST_F(DeviceNorms, ThatAreNotFiniteAreWaitedForWhereTheProgramAsks) {
  there[1].mutable_grad().fill_(INFINITY);
  EXPECT_EQ(muster::testing::thrown_id([&] { clip_grad_norm_(there, 1.0, {.non_finite = NonFinite::error}); }),
            "MU143");
  clip_grad_norm_(there, 1.0, {.non_finite = NonFinite::skip});
  EXPECT_FALSE(there[0].grad().defined());
}

TEST_F(DeviceNorms, OfGroupsAreReadLaterToo) {
  torch::optim::SGD here(
      std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup({parameters[0]}),
                                                     torch::optim::OptimizerParamGroup({parameters[1], parameters[2]})},
      0.1);
  torch::optim::SGD far(
      std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup({there[0]}),
                                                     torch::optim::OptimizerParamGroup({there[1], there[2]})},
      0.1);
  const std::vector<double> wanted = clip_grad_norm_(here, 0.5);
  sim::reset_stats();
  const auto norms = clip_grad_norm_(far, 0.5);
  EXPECT_EQ(sim::stats().all_host_waits(), 0);
  EXPECT_EQ(std::vector<double>(norms), wanted);
}

TEST(GradNorm, IsUsedAsANumber) {
  const GradNorm norm = 2.5;
  const double number = norm;
  EXPECT_EQ(number, 2.5);
  EXPECT_GT(norm, 2);
  EXPECT_LT(norm, GradNorm(3));
  EXPECT_EQ(std::sqrt(norm * norm), 2.5);
  EXPECT_TRUE(std::isfinite(norm));
  EXPECT_EQ(formatted("{:.2f}", norm), "2.50");
  EXPECT_FALSE(norm.on_device().defined());
}

}  // namespace
}  // namespace muster::optim
