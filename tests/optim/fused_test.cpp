#include "muster/optim/fused.h"

#include <functional>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/optim/elementwise.h"
#include "muster/testing/thrown.h"
#include "optim/models.h"

namespace muster::optim {
namespace {

namespace lib = torch::optim;
using testing::copies;
using testing::largest_difference;
using testing::odd_parameters;
using testing::set_gradients;

using Groups = std::vector<lib::OptimizerParamGroup>;
using Maker = std::function<std::unique_ptr<lib::Optimizer>(Groups)>;

struct RuleCase {
  std::string name;
  Maker make;
};

/// An optimizer of one's own: Lion with decoupled weight decay.
struct Lion : ElementwiseOptimizer {
  Lion(Groups groups, double lr)
      : ElementwiseOptimizer(std::move(groups), {{"lr", lr}, {"beta", 0.9}, {"weight_decay", 0.02}}, {"exp_avg"}) {}
  void update(const ElementwiseOptions& options, const ElementwiseUpdate& u) override {
    u.value.mul_(1 - options.at("lr") * options.at("weight_decay"));
    u.value.sub_((u.states[0] * 0.9 + u.gradient * 0.1).sign_(), options.at("lr"));
    u.states[0].mul_(options.at("beta")).add_(u.gradient, 1 - options.at("beta"));
  }
};

std::vector<RuleCase> every_rule() {
  return {
      {"sgd", [](Groups g) { return std::make_unique<lib::SGD>(g, lib::SGDOptions(0.1).weight_decay(0.02)); }},
      {"momentum",
       [](Groups g) {
         return std::make_unique<lib::SGD>(g, lib::SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.02));
       }},
      {"nesterov",
       [](Groups g) { return std::make_unique<lib::SGD>(g, lib::SGDOptions(0.1).momentum(0.9).nesterov(true)); }},
      {"adam", [](Groups g) { return std::make_unique<lib::Adam>(g, lib::AdamOptions(0.1).weight_decay(0.03)); }},
      {"adam_amsgrad", [](Groups g) { return std::make_unique<lib::Adam>(g, lib::AdamOptions(0.1).amsgrad(true)); }},
      {"adamw",
       [](Groups g) {
         return std::make_unique<lib::AdamW>(g, lib::AdamWOptions(0.1).betas({0.8, 0.95}));
       }},
      {"adamw_amsgrad",
       [](Groups g) {
         return std::make_unique<lib::AdamW>(g, lib::AdamWOptions(0.1).weight_decay(0.1).amsgrad(true).eps(1e-6));
       }},
      {"adagrad",
       [](Groups g) {
         return std::make_unique<lib::Adagrad>(
             g, lib::AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.02).initial_accumulator_value(0.5));
       }},
      {"rmsprop", [](Groups g) { return std::make_unique<lib::RMSprop>(g, lib::RMSpropOptions(0.01)); }},
      {"rmsprop_momentum",
       [](Groups g) {
         return std::make_unique<lib::RMSprop>(g, lib::RMSpropOptions(0.01).momentum(0.8).weight_decay(0.02));
       }},
      {"rmsprop_centered",
       [](Groups g) { return std::make_unique<lib::RMSprop>(g, lib::RMSpropOptions(0.01).centered(true).eps(1e-3)); }},
      {"rmsprop_both",
       [](Groups g) {
         return std::make_unique<lib::RMSprop>(g, lib::RMSpropOptions(0.01).centered(true).momentum(0.8).eps(1e-3));
       }},
      {"lion", [](Groups g) { return std::make_unique<Lion>(g, 0.01); }},
  };
}

/// Ours and LibTorch's own, on equal parameters.
struct Pair {
  std::vector<at::Tensor> mine, theirs;
  std::unique_ptr<lib::Optimizer> inner, peer;
  FusedOptimizer optimizer;

  Pair(const Maker& make, std::vector<at::Tensor> parameters)
      : mine(std::move(parameters)), theirs(copies(mine)), inner(make({mine})), peer(make({theirs})),
        optimizer(*inner) {}

  void step(uint64_t seed) {
    set_gradients(mine, seed);
    set_gradients(theirs, seed);
    optimizer.step();
    peer->step();
  }
};

TEST(Fused, EqualsLibTorch) {
  for (const auto& [name, make] : every_rule()) {
    Pair doubles(make, odd_parameters(at::kDouble)), floats(make, odd_parameters(at::kFloat));
    EXPECT_TRUE(doubles.optimizer.fused()) << name;
    for (int i = 0; i < 6; ++i) {
      doubles.step(100 + i);
      floats.step(100 + i);
    }
    EXPECT_LT(largest_difference(doubles.mine, doubles.theirs), 1e-12) << name;
    EXPECT_LT(largest_difference(floats.mine, floats.theirs), 2e-6) << name;
  }
}

TEST(Fused, ReadsOptionsAtEachStep) {
  for (const auto& [name, make] : every_rule()) {
    Pair pair(make, odd_parameters(at::kDouble));
    lib::StepLR mine(*pair.inner, 2, 0.5), theirs(*pair.peer, 2, 0.5);
    for (int i = 0; i < 5; ++i) {
      pair.step(110 + i);
      mine.step();
      theirs.step();
    }
    EXPECT_LT(largest_difference(pair.mine, pair.theirs), 1e-12) << name;
  }
}

TEST(Fused, GroupsHaveTheirOwnOptions) {
  for (const auto& [name, make] : every_rule()) {
    const auto parameters = odd_parameters(at::kDouble), others = copies(parameters);
    const auto split = [](const std::vector<at::Tensor>& all) {
      return Groups{{{all.begin(), all.begin() + 2}}, {{all.begin() + 2, all.end()}}};
    };
    const auto inner = make(split(parameters)), peer = make(split(others));
    for (auto* one : {inner.get(), peer.get()}) one->param_groups()[1].options().set_lr(0.003);
    FusedOptimizer optimizer(*inner);
    for (int i = 0; i < 3; ++i) {
      set_gradients(parameters, 120 + i);
      set_gradients(others, 120 + i);
      optimizer.step();
      peer->step();
    }
    EXPECT_LT(largest_difference(parameters, others), 1e-12) << name;
  }
}

TEST(Fused, ParametersWithoutGradientAreNotCounted) {
  for (const auto& [name, make] : every_rule()) {
    Pair pair(make, odd_parameters(at::kDouble));
    for (int i = 0; i < 6; ++i) {
      set_gradients(pair.mine, 130 + i);
      set_gradients(pair.theirs, 130 + i);
      for (const size_t without : {size_t(i % 3), size_t(5)})
        for (auto* side : {&pair.mine, &pair.theirs})
          if (i < 5) (*side)[without].mutable_grad().reset();
      pair.optimizer.step();
      pair.peer->step();
    }
    EXPECT_LT(largest_difference(pair.mine, pair.theirs), 1e-12) << name;
  }
}

TEST(Fused, StateIsTakenOverAndShown) {
  for (const auto& [name, make] : every_rule()) {
    const auto parameters = odd_parameters(at::kDouble), others = copies(parameters);
    const auto inner = make({parameters}), peer = make({others});
    std::unique_ptr<FusedOptimizer> optimizer;
    for (int i = 0; i < 6; ++i) {
      set_gradients(parameters, 140 + i);
      set_gradients(others, 140 + i);
      if (i == 2) optimizer = std::make_unique<FusedOptimizer>(*inner);
      i < 2 ? inner->step() : optimizer->step();
      peer->step();
    }
    EXPECT_LT(largest_difference(parameters, others), 1e-12) << name;
    // The user's own optimizer can go on from what it shows.
    for (int i = 0; i < 2; ++i) {
      set_gradients(parameters, 150 + i);
      set_gradients(others, 150 + i);
      inner->step();
      peer->step();
    }
    EXPECT_LT(largest_difference(parameters, others), 1e-12) << name;
  }
}

TEST(Fused, StateHasTheParametersShapeAndStrides) {
  const auto parameters = odd_parameters(at::kFloat);
  lib::AdamW inner(parameters, lib::AdamWOptions(0.1));
  FusedOptimizer optimizer(inner);
  set_gradients(parameters, 160);
  optimizer.step();
  for (const auto& parameter : parameters) {
    const auto& state = static_cast<lib::AdamWParamState&>(*inner.state().at(parameter.unsafeGetTensorImpl()));
    EXPECT_EQ(state.step(), 1);
    EXPECT_EQ(state.exp_avg().sizes(), parameter.sizes());
    EXPECT_EQ(state.exp_avg().strides(), parameter.strides());
    EXPECT_TRUE(torch::allclose(state.exp_avg(), parameter.grad() * 0.1));
  }
}

TEST(Fused, GradientInAnotherLayoutIsRead) {
  // The kernels ignore strides: a channels_last parameter with a contiguous gradient would be updated wrongly.
  for (const auto& [name, make] : every_rule()) {
    Pair pair(make, odd_parameters(at::kDouble));
    for (int i = 0; i < 3; ++i) {
      set_gradients(pair.mine, 170 + i);
      set_gradients(pair.theirs, 170 + i);
      pair.mine[5].mutable_grad() = pair.mine[5].grad().contiguous();
      pair.mine[6].mutable_grad() = pair.mine[6].grad().contiguous();
      pair.mine[0].mutable_grad() = pair.mine[0].grad().t().contiguous().t();
      pair.optimizer.step();
      pair.peer->step();
    }
    EXPECT_LT(largest_difference(pair.mine, pair.theirs), 1e-12) << name;
  }
}

TEST(Fused, SparseGradientGoesThroughTheOwnStep) {
  for (const char* name : {"sgd", "adagrad"}) {
    const auto make = [&](Groups g) -> std::unique_ptr<lib::Optimizer> {
      if (name[0] == 's') return std::make_unique<lib::SGD>(g, lib::SGDOptions(0.1));
      return std::make_unique<lib::Adagrad>(g, lib::AdagradOptions(0.1));
    };
    Pair pair(make, {torch::ones({8, 4}, torch::kDouble).requires_grad_(),
                     torch::ones({70}, torch::kDouble).requires_grad_()});
    for (int i = 0; i < 4; ++i) {
      set_gradients(pair.mine, 180 + i);
      set_gradients(pair.theirs, 180 + i);
      if (i == 1)
        for (auto* side : {&pair.mine, &pair.theirs}) {
          auto& gradient = (*side)[0].mutable_grad();
          gradient = gradient.index_fill(0, torch::tensor({0, 3, 5}), 0.0).to_sparse(1);
        }
      pair.optimizer.step();
      pair.peer->step();
    }
    EXPECT_LT(largest_difference(pair.mine, pair.theirs), 1e-12) << name;
  }
}

/// A model's parameters in one flat memory, as a strategy lays them.
class FlatMemory : public FlatSource {
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
  FusedOptimizer optimizer(sgd, {&memory});
  parameters[0].grad().fill_(2);
  optimizer.step();
  EXPECT_EQ(memory.events, (std::vector<std::string>{"begin " + std::to_string(5.0), "end 1 " + std::to_string(2.0)}));
  parameters[0].mutable_grad().reset();
  optimizer.step();
  EXPECT_EQ(memory.events.size(), 3u) << "nothing was updated";
}

TEST(Fused, FlatMemoryGivesTheSameBits) {
  for (const auto& [name, make] : every_rule())
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      if (name == "adam_amsgrad") continue;
      const auto parameters = odd_parameters(dtype), others = copies(parameters);
      const auto inner = make({parameters}), other_inner = make({others});
      FlatMemory memory(parameters);
      FusedOptimizer flat(*inner, {&memory}), loose(*other_inner);
      for (int i = 0; i < 5; ++i) {
        set_gradients(others, 190 + i);
        for (size_t k = 0; k < parameters.size(); ++k) parameters[k].grad().copy_(others[k].grad());
        flat.step();
        loose.step();
      }
      for (size_t k = 0; k < parameters.size(); ++k)
        EXPECT_TRUE(torch::equal(parameters[k].detach(), others[k].detach())) << name << ' ' << dtype << ' ' << k;
      flat.zero_grad(false);
      EXPECT_EQ(parameters[0].grad().abs().sum().item<double>(), 0.0);
    }
}

TEST(Fused, ASourceMayComeAfterTheFirstStep) {
  const auto parameters = odd_parameters(at::kDouble), others = copies(parameters);
  lib::AdamW inner(parameters, lib::AdamWOptions(0.1)), peer(others, lib::AdamWOptions(0.1));
  FusedOptimizer optimizer(inner);
  std::unique_ptr<FlatMemory> memory;
  for (int i = 0; i < 4; ++i) {
    set_gradients(others, 200 + i);
    if (i == 2) {
      memory = std::make_unique<FlatMemory>(parameters);
      optimizer.add_source(*memory);
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
class HalfMemory : public FlatSource {
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
  FusedOptimizer optimizer(adamw, {&memory});
  optimizer.step();
  EXPECT_TRUE(torch::allclose(memory.piece_.value, torch::full({64}, 0.9)));
  EXPECT_TRUE(torch::equal(parameter.detach(), torch::ones({128})));

  Lion lion({lib::OptimizerParamGroup({parameter})}, 0.25);
  FusedOptimizer second(lion, {&memory});
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
  FusedOptimizer first(lbfgs, {&memory}), second(derived, {&memory}), whole(lbfgs);
  const auto why = muster::testing::thrown([&] { first.refuse_parts(); });
  EXPECT_EQ(why.rfind("MU134: LBFGS needs whole parameters, since it takes dot products", 0), 0u) << why;
  EXPECT_EQ(muster::testing::thrown_id([&] { first.step(); }), "MU134");
  const auto own = muster::testing::thrown([&] { second.refuse_parts(); });
  EXPECT_NE(own.find("MyAdam"), std::string::npos) << own;
  EXPECT_NE(own.find("ElementwiseOptimizer"), std::string::npos) << own;
  whole.refuse_parts();
}

TEST(Fused, HowElementsAreCutIntoCallsDoesNotMatter) {
  // RMSprop's loop is ours: its bits must not depend on where an element stands, nor on who steps it.
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    torch::manual_seed(5);
    const int64_t count = 64 * 1200;  // several threads' worth
    const auto all = torch::randn({count}, dtype);
    std::vector<at::Tensor> whole{all.clone().requires_grad_()}, cut;
    for (const auto& piece : all.split({64, 64 * 7, 64 * 500, 64 * 692})) cut.push_back(piece.clone().requires_grad_());
    lib::RMSprop one(whole, lib::RMSpropOptions(0.01).centered(true).momentum(0.5)),
        other(cut, lib::RMSpropOptions(0.01).centered(true).momentum(0.5));
    FusedOptimizer of_one(one), of_other(other);
    for (int i = 0; i < 4; ++i) {
      const auto gradient = torch::randn({count}, dtype);
      whole[0].mutable_grad() = gradient.clone();
      const auto parts = gradient.split({64, 64 * 7, 64 * 500, 64 * 692});
      for (size_t k = 0; k < cut.size(); ++k) cut[k].mutable_grad() = parts[k].clone();
      of_one.step();
      of_other.step();
    }
    EXPECT_TRUE(torch::equal(whole[0].detach(), torch::cat(cut).detach())) << dtype;
  }
}

TEST(Fused, ClosureRunsWithGradients) {
  auto parameter = torch::full({70}, 2.0).requires_grad_();
  lib::LBFGS lbfgs({parameter}, lib::LBFGSOptions(0.5));
  lib::SGD sgd({parameter}, lib::SGDOptions(0.1));
  const auto closure = [&] {
    parameter.mutable_grad().reset();
    auto loss = parameter.square().sum();
    loss.backward();
    return loss;
  };
  FusedOptimizer first(lbfgs), second(sgd);
  torch::NoGradGuard no_grad;
  EXPECT_NEAR(second.step(closure).item<double>(), 280.0, 1e-3);
  EXPECT_NEAR(parameter[69].item<double>(), 1.6, 1e-6);
  for (int i = 0; i < 10; ++i) first.step(closure);
  EXPECT_LT(parameter.abs().max().item<double>(), 1e-3);
  EXPECT_EQ(first.describe(), "LBFGS, by its own step");
  EXPECT_EQ(second.describe(), "SGD, fused");
}

TEST(Fused, AStepMarksParametersAsModified) {
  auto parameter = torch::ones({64}).requires_grad_();
  lib::SGD sgd({parameter}, lib::SGDOptions(0.1));
  FusedOptimizer optimizer(sgd);
  const auto loss = (parameter * parameter).sum();
  parameter.mutable_grad() = torch::ones({64});
  optimizer.step();
  EXPECT_THROW(loss.backward(), c10::Error) << "the graph holds values that are gone";
}

TEST(Fused, GradientsAreNotKeptAlive) {
  auto parameter = torch::ones({128}).requires_grad_();
  lib::AdamW inner({parameter}, lib::AdamWOptions(0.1));
  FusedOptimizer optimizer(inner);
  parameter.mutable_grad() = torch::ones({128});
  const c10::Storage storage = parameter.grad().storage();
  optimizer.step();
  optimizer.zero_grad();
  EXPECT_FALSE(parameter.grad().defined());
  EXPECT_EQ(storage.use_count(), 1u);
}

}  // namespace
}  // namespace muster::optim
