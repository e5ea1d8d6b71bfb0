#include "muster/runtime/evaluation_scope.h"

#include <stdexcept>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "runtime/ranks.h"

namespace muster::evaluation_scopes {
namespace {

using testing::as_ranks;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return body->forward(x); }
  torch::nn::Sequential body = register_module(
      "body", torch::nn::Sequential(torch::nn::Linear(2, 4), torch::nn::BatchNorm1d(4), torch::nn::Dropout(0.5)));
};
TORCH_MODULE(Net);

/// One whose batch norm stays in eval mode, and that may refuse a mode.
struct StubbornImpl : torch::nn::Module {
  void train(bool on) override {
    if (!on && refuses) throw std::runtime_error("this module always trains");
    torch::nn::Module::train(on);
    norm->eval();
  }
  bool refuses = false;
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
};
TORCH_MODULE(Stubborn);

std::vector<bool> modes(const torch::nn::Module& module) {
  std::vector<bool> all;
  for (const auto& one : module.modules(/*include_self=*/false)) all.push_back(one->is_training());
  all.push_back(module.is_training());
  return all;
}

TEST(EvaluationScope, RestoresTheModeOfEverySubmodule) {
  Net net;
  net->body->ptr(1)->eval();  // a frozen batch norm
  const auto before = modes(*net);
  {
    const auto scope = evaluation(net);
    EXPECT_EQ(modes(*net), std::vector<bool>(5, false));
    EXPECT_FALSE(torch::GradMode::is_enabled());
    const auto nested = evaluation(net);
  }
  EXPECT_EQ(modes(*net), before);
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST(EvaluationScope, KeepsAParentInEvalModeWithATrainingChild) {
  Net net;
  net->eval();
  net->body->ptr(2)->train();
  const auto before = modes(*net);
  { const auto scope = evaluation(net); }
  EXPECT_EQ(modes(*net), before);
}

TEST(EvaluationScope, EndsByAnExceptionToo) {
  Net net;
  const auto before = modes(*net);
  EXPECT_THROW(
      {
        const auto scope = evaluation(net);
        throw std::runtime_error("the user's own");
      },
      std::runtime_error);
  EXPECT_EQ(modes(*net), before);
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST(EvaluationScope, FollowsTheModulesOwnTrain) {
  Stubborn stubborn;
  stubborn->train(true);
  { const auto scope = evaluation(stubborn); }
  EXPECT_EQ(modes(*stubborn), (std::vector<bool>{false, true}));
}

TEST(EvaluationScope, AModuleThatRefusesLeavesTheOthersAsTheyWere) {
  Net net;
  Stubborn stubborn;
  stubborn->refuses = true;
  EXPECT_THROW(std::ignore = evaluation(net, stubborn), std::runtime_error);
  EXPECT_EQ(modes(*net), std::vector<bool>(5, true));
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST(EvaluationScope, TakesPreparedModelsOfBothApis) {
  Accelerator accelerator;
  Fabric fabric;
  auto first = accelerator.prepare(Net()), second = fabric.setup(Net());
  torch::Tensor once, twice;
  {
    const auto scope = accelerator.evaluation(first), other = fabric.evaluation(second);
    once = first(torch::ones({3, 2}));
    twice = first(torch::ones({3, 2}));
    EXPECT_FALSE(second->is_training());
  }
  EXPECT_FALSE(once.requires_grad());
  EXPECT_TRUE(torch::equal(once, twice));  // no dropout, and no change of running statistics
  EXPECT_TRUE(first->is_training() && second->is_training());
}

TEST(EvaluationScope, LeavesTrainingOnTwoRanksAsItWas) {
  as_ranks(2, [] {
    Accelerator accelerator({.strategy = "fsdp"});
    torch::manual_seed(1);
    Net net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const auto x = torch::ones({4, 2});
    {
      const auto scope = accelerator.evaluation(model);
      EXPECT_FALSE(model(x).requires_grad());
    }
    const auto loss = model(x).square().mean();
    EXPECT_TRUE(loss.requires_grad());
    accelerator.backward(loss);
    optimizer.step();
    EXPECT_EQ(modes(*net), std::vector<bool>(5, true));
  });
}

}  // namespace
}  // namespace muster::evaluation_scopes
