#include "muster/optim/optimizer_state.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "optim/fused.h"
#include "optim/models.h"

namespace muster::optim {
namespace {

using muster::testing::thrown;
using muster::testing::thrown_id;
namespace lib = torch::optim;
using Parameters = std::vector<at::Tensor>;

struct Case {
  std::string name;
  std::function<std::unique_ptr<lib::Optimizer>(const Parameters&)> make;
  std::vector<std::string> options;  // as Python lists them
  std::vector<std::string> state;
};

template <class O, class Options>
std::function<std::unique_ptr<lib::Optimizer>(const Parameters&)> maker(Options options) {
  return [options](const Parameters& all) -> std::unique_ptr<lib::Optimizer> {
    // Two groups, the second with another rate.
    std::vector<lib::OptimizerParamGroup> groups;
    groups.emplace_back(Parameters(all.begin(), all.begin() + 3));
    groups.emplace_back(Parameters(all.begin() + 3, all.end()), std::make_unique<Options>(Options(options).lr(0.003)));
    return std::make_unique<O>(groups, options);
  };
}

const std::vector<std::string> kAdamOptions{
    "lr",         "betas",          "eps",   "weight_decay",           "amsgrad", "maximize", "foreach",
    "capturable", "differentiable", "fused", "decoupled_weight_decay", "params"};

std::vector<Case> cases() {
  return {
      {"SGD",
       maker<lib::SGD>(lib::SGDOptions(0.1).momentum(0.9)),
       {"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach", "differentiable", "fused",
        "params"},
       {"momentum_buffer"}},
      {"Adam",
       maker<lib::Adam>(lib::AdamOptions(0.01).amsgrad(true)),
       kAdamOptions,
       {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
      {"AdamW",
       maker<lib::AdamW>(lib::AdamWOptions(0.01).betas({0.8, 0.95})),
       kAdamOptions,
       {"step", "exp_avg", "exp_avg_sq"}},
      {"Adagrad",
       maker<lib::Adagrad>(lib::AdagradOptions(0.01).lr_decay(0.1)),
       {"lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value", "foreach", "maximize", "differentiable",
        "fused", "params"},
       {"step", "sum"}},
      {"RMSprop",
       maker<lib::RMSprop>(lib::RMSpropOptions(0.01).momentum(0.5).centered(true)),
       {"lr", "momentum", "alpha", "eps", "centered", "weight_decay", "capturable", "foreach", "maximize",
        "differentiable", "params"},
       {"step", "square_avg", "momentum_buffer", "grad_avg"}},
  };
}

std::vector<std::string> names_of(const State& state) {
  std::vector<std::string> names;
  for (const auto& [name, _] : state.map()) names.push_back(name);
  return names;
}

void step_fused(FusedStep& optimizer, const Parameters& parameters, uint64_t seed) {
  optimizer.note_backward();
  testing::set_gradients(parameters, seed);
  optimizer.step();
}

TEST(OptimizerState, HasPythonsNames) {
  for (const auto& one : cases()) {
    const auto parameters = testing::odd_parameters(at::kFloat);
    const auto optimizer = one.make(parameters);
    // Adagrad makes its sums at once.
    EXPECT_EQ(state_dict(*optimizer).at("state").map().empty(), one.name != "Adagrad") << one.name;
    testing::set_gradients(parameters, 3);
    optimizer->step();
    const auto state = state_dict(*optimizer);
    EXPECT_EQ(names_of(state.at("param_groups").list()[1]), one.options) << one.name;
    EXPECT_EQ(names_of(state.at("state").at("6")), one.state) << one.name;
    EXPECT_EQ(state.at("param_groups").list()[1].at("lr").number(), 0.003);
    EXPECT_EQ(state.at("param_groups").list()[1].at("params").list().front().integer(), 3);
  }
}

TEST(OptimizerState, GoesOnToTheBitAfterALoad) {
  for (const auto& one : cases()) {
    const auto parameters = testing::odd_parameters(at::kFloat);
    const auto inner = one.make(parameters);
    FusedStep whole(*inner);
    for (uint64_t step = 0; step < 3; ++step) step_fused(whole, parameters, step);

    const auto others = testing::copies(parameters);
    const auto other_inner = one.make(others);
    FusedStep resumed(*other_inner);
    step_fused(resumed, others, 99);  // what was there before must not count
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < others.size(); ++i) others[i].copy_(parameters[i]);
    }
    load_state_dict(*other_inner, state_dict(*inner));
    resumed.note_load();
    EXPECT_TRUE(identical(state_dict(*other_inner), state_dict(*inner))) << one.name;
    for (uint64_t step = 3; step < 6; ++step) {
      step_fused(whole, parameters, step);
      step_fused(resumed, others, step);
    }
    EXPECT_EQ(testing::largest_difference(parameters, others), 0.0) << one.name;
    EXPECT_TRUE(identical(state_dict(*other_inner), state_dict(*inner))) << one.name;
  }
}

TEST(OptimizerState, LbfgsGoesOnToTheBit) {
  const auto run = [](lib::LBFGS& lbfgs, const at::Tensor& x) {
    lbfgs.step([&] {
      lbfgs.zero_grad();
      auto loss = ((x - 3).pow(4) + x.sin()).sum();
      loss.backward();
      return loss;
    });
  };
  const lib::LBFGSOptions options = lib::LBFGSOptions(0.1).max_iter(4);
  const auto x = torch::linspace(-1, 1, 9).requires_grad_();
  lib::LBFGS whole({x}, options);
  run(whole, x);
  const auto y = x.detach().clone().requires_grad_();
  lib::LBFGS resumed({y}, options);
  load_state_dict(resumed, state_dict(whole));
  run(whole, x);
  run(resumed, y);
  EXPECT_TRUE(at::equal(x, y));
  EXPECT_TRUE(identical(state_dict(whole), state_dict(resumed)));
}

TEST(OptimizerState, TakesPythonsCountsInTensors) {
  const auto parameters = testing::odd_parameters(at::kFloat);
  lib::AdamW from(parameters), to(parameters);
  testing::set_gradients(parameters, 1);
  from.step();
  auto state = state_dict(from);
  for (auto& [_, entry] : state.at("state").map()) entry.set("step", at::scalar_tensor(7.0, at::kFloat));
  load_state_dict(to, state);
  EXPECT_EQ(state_dict(to).at("state").at("0").at("step").integer(), 7);
}

TEST(OptimizerState, WhatDoesNotFitChangesNothing) {
  const auto parameters = testing::odd_parameters(at::kFloat);
  lib::AdamW adam(parameters);
  testing::set_gradients(parameters, 1);
  adam.step();
  const auto before = state_dict(adam);
  lib::SGD sgd(parameters, lib::SGDOptions(0.1));
  EXPECT_EQ(thrown_id([&] { load_state_dict(adam, state_dict(sgd)); }), "MU209");
  lib::AdamW fewer(Parameters(parameters.begin(), parameters.begin() + 2));
  EXPECT_NE(thrown([&] { load_state_dict(adam, state_dict(fewer)); }).find("MU131"), std::string::npos);
  auto bad = before;
  bad.at("state").at("5").set("exp_avg", "text");
  EXPECT_EQ(thrown_id([&] { load_state_dict(adam, bad); }), "MU208");
  EXPECT_TRUE(identical(state_dict(adam), before));
}

struct OwnOptions : lib::OptimizerCloneableOptions<OwnOptions> {};
class Own : public lib::Optimizer {
 public:
  explicit Own(const Parameters& parameters)
      : lib::Optimizer({lib::OptimizerParamGroup(parameters)}, std::make_unique<OwnOptions>()) {}
  at::Tensor step(LossClosure = nullptr) override { return {}; }
};
class OwnSaved : public Own {
 public:
  using Own::Own;
  int64_t count = 0;
  void save(torch::serialize::OutputArchive& archive) const override { archive.write("count", c10::IValue(count)); }
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("count", value);
    count = value.toInt();
  }
};

TEST(OptimizerState, AClassOfOnesOwnSavesItself) {
  const auto parameters = testing::odd_parameters(at::kFloat);
  OwnSaved from(parameters), to(parameters);
  from.count = 5;
  load_state_dict(to, state_dict(from));
  EXPECT_EQ(to.count, 5);
  Own silent(parameters);
  EXPECT_EQ(thrown_id([&] { state_dict(silent); }), "MU132");
  EXPECT_EQ(thrown_id([&] { load_state_dict(silent, state_dict(from)); }), "MU132");
}

}  // namespace
}  // namespace muster::optim
