#include "muster/optim/elementwise.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/optim/optimizer_state.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

using torch::Tensor;
using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

/// Momentum that forgets more with every update, so that it needs the step's number, and two states.
struct Fading : ElementwiseOptimizer {
  explicit Fading(ParamGroups groups, double lr = 0.1)
      : ElementwiseOptimizer(std::move(groups), {{"lr", lr}, {"beta", 0.5}}, {"momentum", "largest"}) {}
  void update(const ElementwiseOptions& options, const ElementwiseUpdate& u) override {
    u.states[0].mul_(options.at("beta") / static_cast<double>(u.step)).add_(u.gradient);
    u.states[1].copy_(at::maximum(u.states[1], u.gradient.abs()));
    u.value.sub_(u.states[0] + u.states[1], options.get_lr());
  }
};

/// The same on a full tensor, by hand.
struct ByHand {
  Tensor momentum, largest;
  int64_t step = 0;
  void update(const Tensor& value, const Tensor& gradient, double lr) {
    if (++step == 1) momentum = torch::zeros_like(value), largest = torch::zeros_like(value);
    momentum = momentum * (0.5 / static_cast<double>(step)) + gradient;
    largest = torch::maximum(largest, gradient.abs());
    value.sub_(momentum + largest, lr);
  }
};

std::vector<Tensor> parameters_of_all_layouts() {
  return {torch::arange(6.0, torch::kDouble).view({2, 3}).requires_grad_(),
          torch::arange(12.0, torch::kDouble).view({3, 4}).t().detach().requires_grad_(),
          torch::arange(24.0, torch::kDouble).view({4, 6}).slice(1, 0, 6, 2).detach().requires_grad_(),  // with gaps
          torch::ones({}, torch::kDouble).requires_grad_()};
}

TEST(Elementwise, StepsLikeAnyOptimizerOfLibTorch) {
  const auto parameters = parameters_of_all_layouts();
  std::vector<Tensor> wanted;
  for (const auto& parameter : parameters) wanted.push_back(parameter.detach().clone());
  std::vector<ByHand> by_hand(parameters.size());
  Fading optimizer({torch::optim::OptimizerParamGroup(parameters)});
  for (int i = 0; i < 4; ++i) {
    for (size_t k = 0; k < parameters.size(); ++k) {
      auto gradient = torch::sin(parameters[k].detach() + i).contiguous();
      if (k == 0 && i == 2) gradient = gradient.to_sparse();
      parameters[k].mutable_grad() = gradient;
      if (k == 3 && i == 1) parameters[k].mutable_grad().reset();
      else by_hand[k].update(wanted[k], gradient.is_sparse() ? gradient.to_dense() : gradient, 0.1);
    }
    EXPECT_FALSE(optimizer.step().defined());
  }
  for (size_t k = 0; k < parameters.size(); ++k) EXPECT_TRUE(torch::equal(parameters[k].detach(), wanted[k])) << k;
}

TEST(Elementwise, TheClosureRecordsGradients) {
  auto parameter = torch::full({3}, 2.0).requires_grad_();
  Fading optimizer({torch::optim::OptimizerParamGroup({parameter})});
  torch::NoGradGuard no_grad;
  const auto loss = optimizer.step([&] {
    auto value = parameter.square().sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 12.0f);
  EXPECT_LT(parameter[0].item<float>(), 2.0f);
}

TEST(Elementwise, SchedulersSetItsRate) {
  auto parameter = torch::ones({3}).requires_grad_();
  Fading optimizer({torch::optim::OptimizerParamGroup({parameter})}, 0.4);
  StepLR schedule(optimizer, {.gamma = 0.5, .step_size = 1});
  schedule.step();
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.2);
}

TEST(Elementwise, GroupsKeepTheirOptions) {
  auto one = torch::zeros({3}).requires_grad_(), other = torch::zeros({3}).requires_grad_();
  ParamGroups groups{torch::optim::OptimizerParamGroup({one}), torch::optim::OptimizerParamGroup({other})};
  groups[1].set_options(std::make_unique<ElementwiseOptions>(ElementwiseOptions{{"lr", 0.5}, {"beta", 0.1}}));
  Fading optimizer(groups, 0.25);
  one.mutable_grad() = other.mutable_grad() = torch::ones({3});
  optimizer.step();
  EXPECT_TRUE(torch::equal(one.detach(), torch::full({3}, -0.5)));
  EXPECT_TRUE(torch::equal(other.detach(), torch::full({3}, -1.0)));
}

TEST(Elementwise, StateGoesThroughADictionary) {
  const auto first = parameters_of_all_layouts(), second = parameters_of_all_layouts();
  Fading one({torch::optim::OptimizerParamGroup(first)}, 0.3), other({torch::optim::OptimizerParamGroup(second)});
  for (const auto& parameter : first) parameter.mutable_grad() = torch::cos(parameter.detach());
  one.step();
  const auto saved = state_dict(one);
  EXPECT_EQ(saved.at("param_groups").list()[0].at("lr").number(), 0.3);
  EXPECT_EQ(saved.at("state").at("1").at("step").integer(), 1);
  EXPECT_TRUE(torch::equal(saved.at("state").at("1").at("momentum").tensor(), first[1].grad()));
  load_state_dict(other, saved);
  torch::NoGradGuard no_grad;
  for (size_t k = 0; k < first.size(); ++k) {
    second[k].copy_(first[k]);
    second[k].mutable_grad() = first[k].grad().clone();
  }
  one.step();
  other.step();
  for (size_t k = 0; k < first.size(); ++k) EXPECT_TRUE(torch::equal(first[k], second[k])) << k;
}

TEST(Elementwise, ChangesOfStateReachTensorsOfTheParametersShape) {
  auto parameter = torch::ones({3, 2}).requires_grad_();
  torch::optim::RMSprop rmsprop({parameter}, torch::optim::RMSpropOptions(0.1).momentum(0.9));
  parameter.mutable_grad() = torch::ones({3, 2});
  rmsprop.step();
  change_state(rmsprop, parameter, [](const Tensor& whole) { return whole.flatten().narrow(0, 0, 4).clone(); });
  const auto& state =
      static_cast<torch::optim::RMSpropParamState&>(*rmsprop.state().at(parameter.unsafeGetTensorImpl()));
  EXPECT_EQ(state.square_avg().sizes(), at::IntArrayRef({4}));
  EXPECT_EQ(state.momentum_buffer().sizes(), at::IntArrayRef({4}));
  EXPECT_EQ(state.step(), 1);
}

TEST(Elementwise, RefusesWhatCannotWork) {
  struct Any : ElementwiseOptimizer {
    using ElementwiseOptimizer::ElementwiseOptimizer;
    void update(const ElementwiseOptions& options, const ElementwiseUpdate&) override { options.at("gamma"); }
  };
  const ParamGroups groups{torch::optim::OptimizerParamGroup({torch::ones({2}).requires_grad_()})};
  const auto error_of = [](auto&& f) { return muster::testing::thrown(f); };
  EXPECT_EQ(error_of([&] { Any(groups, {{"beta", 1}}, {}); }).substr(0, 5), "MU199");
  EXPECT_EQ(error_of([&] { Any(groups, {{"lr", 1}}, {"a", "a"}); }).substr(0, 5), "MU199");
  EXPECT_EQ(error_of([&] { Any(groups, {{"lr", 1}}, std::vector<std::string>(9, "a")); }).substr(0, 5), "MU199");
  ParamGroups other = groups;
  other[0].set_options(std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_EQ(error_of([&] { Any(other, {{"lr", 1}}, {}); }).substr(0, 5), "MU199");
  Any unknown(groups, {{"lr", 1}, {"beta", 1}}, {});
  unknown.param_groups()[0].params()[0].mutable_grad() = torch::ones({2});
  const auto message = error_of([&] { unknown.step(); });
  EXPECT_NE(message.find("beta, lr"), std::string::npos) << message;
}

}  // namespace
}  // namespace muster
