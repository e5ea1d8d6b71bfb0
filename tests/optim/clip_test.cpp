#include "muster/optim/clip.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/optim/detail/norm.h"
#include "muster/testing/thrown.h"
#include "optim/models.h"

namespace muster::optim {
namespace {

constexpr double kNoBound = std::numeric_limits<double>::infinity();

std::vector<at::Tensor> with_gradients(uint64_t seed) {
  auto parameters = testing::odd_parameters(at::kDouble);
  std::erase_if(parameters,
                [](const at::Tensor& one) { return one.numel() == 0; });  // LibTorch's own clipping fails on it
  testing::set_gradients(parameters, seed);
  return parameters;
}

TEST(Clip, IsThatOfLibTorchForEveryOrder) {
  for (const double p : {0.5, 1.0, 2.0, 3.0, kNoBound}) {
    const auto mine = with_gradients(7), theirs = with_gradients(7);
    const double norm = clip_grad_norm_(mine, 0.7, {.norm_type = p});
    EXPECT_NEAR(norm / torch::nn::utils::clip_grad_norm_(theirs, 0.7, p), 1.0, 1e-12) << p;
    for (size_t i = 0; i < mine.size(); ++i)
      EXPECT_TRUE(torch::allclose(mine[i].grad(), theirs[i].grad(), 1e-11, 1e-14)) << p;
    EXPECT_NEAR(clip_grad_norm_(mine, kNoBound, {.norm_type = p}), 0.7, 1e-5) << p;
  }
  EXPECT_EQ(muster::testing::thrown_id([] { clip_grad_norm_(with_gradients(1), 1.0, {.norm_type = 0.0}); }), "MU144");
}

TEST(Clip, RoundsHalvesOnce) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    auto parameter = at::zeros({200}, dtype).requires_grad_();
    parameter.mutable_grad() = at::linspace(-1, 1, 200).to(dtype);
    const auto before = parameter.grad().to(at::kFloat);
    const auto factor = static_cast<float>(clip_coefficient(clip_grad_norm_({parameter}, 0.7), 0.7));
    EXPECT_TRUE(torch::equal(parameter.grad(), before.mul(factor).to(dtype))) << dtype;
  }
}

TEST(Clip, ClipsEachGroupByItself) {
  const auto a = with_gradients(1), b = with_gradients(2), as_one = with_gradients(1);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(a);
  groups.emplace_back(b);
  torch::optim::SGD sgd(groups, torch::optim::SGDOptions(0.1));
  const auto before = b[0].grad().clone();
  const auto norms = clip_grad_norm_(sgd, {0.5, 1e9});
  EXPECT_NEAR(norms[0], clip_grad_norm_(as_one, 0.5), 1e-12);
  EXPECT_TRUE(torch::equal(a[0].grad(), as_one[0].grad()));
  EXPECT_TRUE(torch::equal(b[0].grad(), before));
  EXPECT_EQ(muster::testing::thrown_id([&] { clip_grad_norm_(sgd, {1.0, 1.0, 1.0}); }), "MU135");
}

TEST(Clip, DoesWhatItIsToldAboutNonFiniteNorms) {
  for (const double bad : {std::nan(""), kNoBound}) {
    const auto a = with_gradients(1), b = with_gradients(2);
    a[0].grad()[0][0] = bad;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(a);
    groups.emplace_back(b);
    torch::optim::SGD sgd(groups, torch::optim::SGDOptions(0.1));
    EXPECT_EQ(muster::testing::thrown_id([&] { clip_grad_norm_(sgd, 1.0, {.non_finite = NonFinite::error}); }),
              "MU143");
    const auto untouched = b[0].grad().clone();
    EXPECT_TRUE(torch::equal(b[0].grad(), untouched));
    const auto before = testing::copies(b);
    clip_grad_norm_(sgd, 1.0, {.non_finite = NonFinite::skip});
    sgd.step();
    EXPECT_EQ(testing::largest_difference(b, before), 0.0);
    EXPECT_FALSE(a[0].grad().defined() || b[0].grad().defined());
  }
  const auto a = with_gradients(1);
  a[0].grad()[0][0] = std::nan("");
  EXPECT_TRUE(std::isnan(clip_grad_norm_(a, 1.0)));
  EXPECT_TRUE(a[1].grad().isnan().all().item<bool>());
}

TEST(Clip, ATensorThatIsListedTwiceCountsOnce) {
  const auto once = with_gradients(1), again = with_gradients(1);
  auto listed = again;
  listed.push_back(again[0]);
  EXPECT_EQ(clip_grad_norm_(listed, 0.5), clip_grad_norm_(once, 0.5));
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(torch::equal(again[i].grad(), once[i].grad())) << i;

  const auto first = with_gradients(2), second = with_gradients(2);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(first);
  groups.emplace_back(std::vector<at::Tensor>{first[0]});
  torch::optim::SGD sgd(groups, torch::optim::SGDOptions(0.1));
  const auto norms = clip_grad_norm_(sgd, 0.5);
  EXPECT_EQ(norms[0], clip_grad_norm_(second, 0.5));
  EXPECT_EQ(norms[1], 0.0);
  EXPECT_TRUE(torch::equal(first[0].grad(), second[0].grad()));
}

TEST(Clip, ClampsValues) {
  const auto a = with_gradients(1);
  clip_grad_value_(a, 0.25);
  EXPECT_EQ(a[0].grad().max().item<double>(), 0.25);
  EXPECT_EQ(a[1].grad().min().item<double>(), -0.25);
}

}  // namespace
}  // namespace muster::optim
