#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/optim/flat_parameters.h"
#include "muster/testing/thrown.h"
#include "optim/fused.h"
#include "optim/models.h"
#include "optim/rule_cases.h"

// The fused step on memory that a strategy lays out, of which a rank may hold parts of parameters.

namespace muster::optim {
namespace {

namespace lib = torch::optim;
using testing::copies;
using testing::every_rule;
using testing::largest_difference;
using testing::Lion;
using testing::odd_parameters;
using testing::set_gradients;

/// A model's parameters in one flat memory, as a strategy lays them.
class FlatMemory : public FlatParameters {
 public:
  explicit FlatMemory(const std::vector<at::Tensor>& parameters) {
    int64_t total = 0;
    for (const auto& parameter : parameters) total += padded(parameter.numel());
    const auto options = parameters[0].detach().options();
    values_ = torch::zeros({total}, options);
    gradients_ = torch::zeros({total}, options);
    int64_t offset = 0;
    for (auto parameter : parameters) {
      const auto count = padded(parameter.numel());
      auto view = values_.as_strided(parameter.sizes(), parameter.strides(), offset);
      view.copy_(parameter.detach());
      pieces_[parameter.unsafeGetTensorImpl()] = {values_.narrow(0, offset, count),
                                                  gradients_.narrow(0, offset, count)};
      parameter.set_data(view);
      parameter.mutable_grad() = gradients_.as_strided(parameter.sizes(), parameter.strides(), offset);
      offset += count;
    }
  }
  const LocalParameter* find(const at::Tensor& parameter) const override {
    const auto found = pieces_.find(parameter.unsafeGetTensorImpl());
    return found == pieces_.end() ? nullptr : &found->second;
  }
  bool has_gradient(const at::Tensor& parameter) const override { return parameter.grad().defined(); }
  void zero_grad(const at::Tensor& parameter, bool) override { parameter.mutable_grad().zero_(); }
  void begin_update() override { events.push_back("begin " + std::to_string(sum())); }
  void end_update(const std::vector<at::Tensor>& parameters) override {
    events.push_back("end " + std::to_string(parameters.size()) + " " + std::to_string(sum()));
  }
  double sum() const { return values_.sum().item<double>(); }
  std::vector<std::string> events;

 private:
  static int64_t padded(int64_t count) { return (count + kFlatPadding - 1) / kFlatPadding * kFlatPadding; }
  at::Tensor values_, gradients_;
  std::map<void*, LocalParameter> pieces_;
};

TEST(Fused, TellsTheSourceBeforeAndAfterPiecesAreWritten) {
  const std::vector<at::Tensor> parameters{torch::ones({3}, torch::requires_grad()),
                                           torch::ones({2}, torch::requires_grad())};
  FlatMemory memory(parameters);
  parameters[1].mutable_grad().reset();
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.5));
  FusedStep optimizer(sgd, {&memory});
  parameters[0].grad().fill_(2);
  optimizer.step();
  EXPECT_EQ(memory.events, (std::vector<std::string>{"begin " + std::to_string(5.0), "end 1 " + std::to_string(2.0)}));
  parameters[0].mutable_grad().reset();
  optimizer.step();
  EXPECT_EQ(memory.events.size(), 2u) << "nothing was updated";
}

TEST(Fused, FlatMemoryGivesTheSameBits) {
  for (const auto& [name, make] : every_rule())
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      if (name == "adam_amsgrad") continue;
      const auto parameters = odd_parameters(dtype), others = copies(parameters), before = copies(parameters);
      const auto inner = make({parameters}), other_inner = make({others});
      FlatMemory memory(parameters);
      FusedStep flat(*inner, {&memory}), loose(*other_inner);
      for (int i = 0; i < 5; ++i) {
        set_gradients(others, 190 + i);
        for (size_t k = 0; k < parameters.size(); ++k) parameters[k].grad().copy_(others[k].grad());
        flat.step();
        loose.step();
      }
      for (size_t k = 0; k < parameters.size(); ++k) {
        EXPECT_TRUE(torch::equal(parameters[k].detach(), others[k].detach())) << name << ' ' << dtype << ' ' << k;
        // A few elements may round to where they were.
        EXPECT_TRUE(before[k].numel() <= 10 || !torch::equal(parameters[k].detach(), before[k].detach())) << name;
      }
      flat.zero_grad(false);
      EXPECT_EQ(parameters[0].grad().abs().sum().item<double>(), 0.0);
    }
}

TEST(Fused, ASourceMayComeAfterTheFirstStep) {
  const auto parameters = odd_parameters(at::kDouble), others = copies(parameters);
  lib::AdamW inner(parameters, lib::AdamWOptions(0.1)), peer(others, lib::AdamWOptions(0.1));
  FusedStep optimizer(inner);
  std::unique_ptr<FlatMemory> memory;
  for (int i = 0; i < 4; ++i) {
    set_gradients(others, 200 + i);
    if (i == 2) {
      memory = std::make_unique<FlatMemory>(parameters);
      optimizer.add_flat_parameters(*memory);
    }
    for (size_t k = 0; k < parameters.size(); ++k) {
      if (i < 2) parameters[k].mutable_grad() = others[k].grad().clone(at::MemoryFormat::Preserve);
      else parameters[k].grad().copy_(others[k].grad());
    }
    optimizer.step();
    peer.step();
  }
  EXPECT_LT(largest_difference(parameters, others), 1e-12);
}

/// Holds a parameter of which this rank has the second half.
class HalfMemory : public FlatParameters {
 public:
  explicit HalfMemory(at::Tensor parameter) : parameter_(std::move(parameter)) {
    piece_ = {parameter_.detach().flatten().narrow(0, 64, 64).clone(), torch::ones({64})};
  }
  const LocalParameter* find(const at::Tensor& parameter) const override {
    return parameter.is_same(parameter_) ? &piece_ : nullptr;
  }
  bool has_gradient(const at::Tensor&) const override { return true; }
  void zero_grad(const at::Tensor&, bool) override { piece_.gradient.zero_(); }
  LocalParameter piece_;

 private:
  at::Tensor parameter_;
};

TEST(Fused, PartsOfParametersAreUpdatedOnlyByElementwiseRules) {
  auto parameter = torch::ones({128}).requires_grad_();
  HalfMemory memory(parameter);
  lib::AdamW adamw({parameter}, lib::AdamWOptions(0.1).weight_decay(0.0));
  FusedStep optimizer(adamw, {&memory});
  optimizer.step();
  EXPECT_TRUE(torch::allclose(memory.piece_.value, torch::full({64}, 0.9)));
  EXPECT_TRUE(torch::equal(parameter.detach(), torch::ones({128})));

  Lion lion({lib::OptimizerParamGroup({parameter})}, 0.25);
  FusedStep second(lion, {&memory});
  const auto before = memory.piece_.value.clone();
  second.step();
  EXPECT_TRUE(torch::equal(memory.piece_.value, before * (1 - 0.25 * 0.02) - 0.25));
  EXPECT_EQ(second.describe(), "Lion, by its update()");
}

TEST(Fused, WhatNeedsWholeParametersIsRefusedByName) {
  struct MyAdam : lib::Adam {
    using lib::Adam::Adam;
  };
  auto parameter = torch::ones({128}).requires_grad_();
  HalfMemory memory(parameter);
  lib::LBFGS lbfgs({parameter}, lib::LBFGSOptions(0.1));
  MyAdam derived({parameter}, lib::AdamOptions(0.1));
  FusedStep first(lbfgs, {&memory}), second(derived, {&memory}), whole(lbfgs);
  const auto why = muster::testing::thrown([&] { first.require_full_parameters(); });
  EXPECT_EQ(why.rfind("MU134: LBFGS needs full parameters, since it takes dot products", 0), 0u) << why;
  EXPECT_EQ(muster::testing::thrown_id([&] { first.step(); }), "MU134");
  const auto own = muster::testing::thrown([&] { second.require_full_parameters(); });
  EXPECT_NE(own.find("MyAdam"), std::string::npos) << own;
  EXPECT_NE(own.find("ElementwiseOptimizer"), std::string::npos) << own;
  whole.require_full_parameters();
}

}  // namespace
}  // namespace muster::optim
