#include "optim/fused.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "optim/models.h"
#include "optim/rule_cases.h"

namespace muster::optim {
namespace {

namespace lib = torch::optim;
using testing::copies;
using testing::every_rule;
using testing::Groups;
using testing::largest_difference;
using testing::Maker;
using testing::odd_parameters;
using testing::set_gradients;

/// Ours and LibTorch's own, on equal parameters.
struct Pair {
  std::vector<at::Tensor> mine, theirs;
  std::unique_ptr<lib::Optimizer> inner, peer;
  FusedStep optimizer;

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
    FusedStep optimizer(*inner);
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
    std::unique_ptr<FusedStep> optimizer;
    for (int i = 0; i < 6; ++i) {
      set_gradients(parameters, 140 + i);
      set_gradients(others, 140 + i);
      if (i == 2) optimizer = std::make_unique<FusedStep>(*inner);
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
  FusedStep optimizer(inner);
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

/// Steps of one tensor, and of the same elements in pieces.
void expect_same_in_pieces(const Maker& make, at::ScalarType dtype) {
  torch::manual_seed(5);
  const int64_t count = 64 * 1200;  // several threads' worth
  const std::vector<int64_t> sizes{64, 64 * 7, 64 * 500, 64 * 692};
  const auto all = torch::randn({count}).to(dtype);
  std::vector<at::Tensor> whole{all.clone().requires_grad_()}, cut;
  for (const auto& piece : all.split_with_sizes(sizes)) cut.push_back(piece.clone().requires_grad_());
  const auto one = make({whole}), other = make({cut});
  FusedStep of_one(*one), of_other(*other);
  for (int i = 0; i < 4; ++i) {
    const auto gradient = torch::randn({count}).to(dtype);
    whole[0].mutable_grad() = gradient.clone();
    const auto parts = gradient.split_with_sizes(sizes);
    for (size_t k = 0; k < cut.size(); ++k) cut[k].mutable_grad() = parts[k].clone();
    of_one.step();
    of_other.step();
  }
  EXPECT_FALSE(torch::equal(whole[0].detach(), all)) << dtype;
  EXPECT_TRUE(torch::equal(whole[0].detach(), torch::cat(cut).detach())) << dtype;
}

TEST(Fused, HowElementsAreCutIntoCallsDoesNotMatter) {
  // RMSprop's loop and the blocks of halves are ours: an element's bits must not depend on where it stands, nor on who
  // steps it.
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    expect_same_in_pieces(
        [](Groups g) {
          return std::make_unique<lib::RMSprop>(g, lib::RMSpropOptions(0.01).centered(true).momentum(0.5));
        },
        dtype);
    expect_same_in_pieces([](Groups g) { return std::make_unique<lib::SGD>(g, lib::SGDOptions(0.1).momentum(0.9)); },
                          dtype);
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
  FusedStep first(lbfgs), second(sgd);
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
  FusedStep optimizer(sgd);
  const auto loss = (parameter * parameter).sum();
  parameter.mutable_grad() = torch::ones({64});
  optimizer.step();
  EXPECT_THROW(loss.backward(), c10::Error) << "the graph holds values that are gone";
}

TEST(Fused, GradientsAreNotKeptAlive) {
  auto parameter = torch::ones({128}).requires_grad_();
  lib::AdamW inner({parameter}, lib::AdamWOptions(0.1));
  FusedStep optimizer(inner);
  parameter.mutable_grad() = torch::ones({128});
  const c10::Storage storage = parameter.grad().storage();
  optimizer.step();
  optimizer.zero_grad();
  EXPECT_FALSE(parameter.grad().defined());
  EXPECT_EQ(storage.use_count(), 1u);
}

}  // namespace
}  // namespace muster::optim
