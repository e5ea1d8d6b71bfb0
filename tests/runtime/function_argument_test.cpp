#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/runtime/detail/prepare.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

namespace lib = torch::optim;

struct BodyHeadImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return head(body(x).tanh()); }
  torch::nn::Linear body{register_module("body", torch::nn::Linear(3, 4))},
      head{register_module("head", torch::nn::Linear(4, 1))};
};
TORCH_MODULE(BodyHead);

double rate(const Optimizer& optimizer, size_t group = 0) {
  return optimizer->param_groups().at(group).options().get_lr();
}
/// Whether the optimizer's first parameter is the module's.
bool belongs(const Optimizer& optimizer, const torch::nn::Module& module) {
  return optimizer->param_groups().at(0).params().at(0).is_same(module.parameters().at(0));
}

lib::SGD make_sgd(const std::vector<torch::Tensor>& parameters) { return lib::SGD(parameters, 0.3); }

TEST(FunctionArgument, AnyFunctionMakesAnOptimizerOfTheModuleBefore) {
  Accelerator accelerator;
  auto [first, adam, second, sgd, other] = accelerator.prepare(
      BodyHead(), [](auto parameters) { return lib::AdamW(parameters, 0.1); }, torch::nn::Linear(2, 2), make_sgd,
      [](std::vector<torch::Tensor> parameters) -> std::unique_ptr<lib::Optimizer> {
        return std::make_unique<lib::SGD>(std::move(parameters), 0.2);
      });
  static_assert(std::same_as<decltype(adam), Optimizer>);
  EXPECT_TRUE(belongs(adam, *first));
  EXPECT_TRUE(belongs(sgd, *second));
  EXPECT_TRUE(belongs(other, *second));
  EXPECT_EQ(adam->param_groups().at(0).params().size(), 4u);
  EXPECT_DOUBLE_EQ(rate(adam), 0.1);
  EXPECT_DOUBLE_EQ(rate(sgd), 0.3);
  EXPECT_DOUBLE_EQ(rate(other), 0.2);
}

/// Every module has one, or the second names its module.
TEST(FunctionArgument, SeveralOptimizersOfOneModuleAreNoMistake) {
  Accelerator accelerator;
  const auto make = [](auto parameters) { return lib::SGD(parameters, 0.1); };
  auto [a, b, given, of_b, also_of_b] = accelerator.prepare(
      BodyHead(), torch::nn::Linear(2, 2), lib::SGD({torch::zeros({1}, torch::requires_grad())}, 0.1), make, make);
  EXPECT_TRUE(belongs(of_b, *b));
  EXPECT_TRUE(belongs(also_of_b, *b));
  auto [c, d, of_d, of_c] = accelerator.prepare(BodyHead(), torch::nn::Linear(2, 2), make,
                                                [](BodyHeadImpl& net) { return lib::SGD(net.parameters(), 0.1); });
  EXPECT_TRUE(belongs(of_d, *d));
  EXPECT_TRUE(belongs(of_c, *c));
}

TEST(FunctionArgument, OneThatNamesAModuleBuildsParameterGroups) {
  Accelerator accelerator;
  const auto groups = [](BodyHeadImpl& net) {
    std::vector<lib::OptimizerParamGroup> groups;
    groups.emplace_back(net.head->parameters(), std::make_unique<lib::SGDOptions>(0.5));
    groups.emplace_back(net.body->parameters());
    return lib::SGD(groups, lib::SGDOptions(0.1));
  };
  // The nearest module of the class that it names, not the nearest one.
  auto [net, linear, sgd, by_holder, by_base] = accelerator.prepare(
      BodyHead(), torch::nn::Linear(2, 2), groups, [](BodyHead net) { return lib::SGD(net->parameters(), 0.2); },
      [](const torch::nn::Module& module) { return lib::SGD(module.parameters(), 0.3); });
  EXPECT_TRUE(belongs(sgd, *net->head));
  EXPECT_DOUBLE_EQ(rate(sgd), 0.5);
  EXPECT_DOUBLE_EQ(rate(sgd, 1), 0.1);
  EXPECT_TRUE(belongs(by_holder, *net));
  EXPECT_TRUE(belongs(by_base, *linear));
}

TEST(FunctionArgument, OneThatNamesAnOptimizerMakesAScheduler) {
  Accelerator accelerator;
  auto [net, sgd, own, library, plateau] = accelerator.prepare(
      BodyHead(), [](auto parameters) { return lib::SGD(parameters, 1.0); },
      [](lib::Optimizer& optimizer) { return ExponentialLR(optimizer, {.gamma = 0.5}); },
      [](lib::Optimizer& optimizer) { return lib::StepLR(optimizer, 1, 0.1); },
      [](lib::Optimizer& optimizer) {
        return lib::ReduceLROnPlateauScheduler(optimizer, lib::ReduceLROnPlateauScheduler::min, 0.5, 0);
      });
  static_assert(std::same_as<decltype(own), Scheduler>);
  own.step();
  EXPECT_DOUBLE_EQ(rate(sgd), 0.5);
  EXPECT_EQ(own->last_epoch(), 1);
  EXPECT_EQ(own->get_last_lr(), (*own).get_last_lr());
  library.step();
  library.step();
  EXPECT_NEAR(rate(sgd), 0.05, 1e-9);
  plateau.step(1.0);
  plateau.step(2.0);
  EXPECT_NEAR(rate(sgd), 0.025, 1e-9);
  EXPECT_EQ(testing::thrown_id([&, s = library] { s->last_epoch(); }), "MU325");
}

TEST(FunctionArgument, AMadeSchedulerKeepsItsOptimizer) {
  Accelerator accelerator;
  Scheduler scheduler;
  {
    auto [net, sgd, made] = accelerator.prepare(
        BodyHead(), [](auto parameters) { return lib::SGD(parameters, 1.0); },
        [](lib::Optimizer& optimizer) { return lib::StepLR(optimizer, 1, 0.5); });
    scheduler = made;
  }
  scheduler.step();
  scheduler.step();
}

TEST(FunctionArgument, AnEmptyPointerIsAnError) {
  Accelerator accelerator;
  EXPECT_EQ(testing::thrown_id([&] {
              accelerator.prepare(torch::nn::Linear(2, 2), [](auto) { return std::shared_ptr<lib::Optimizer>(); });
            }),
            "MU326");
}

TEST(FunctionArgument, FabricsSetupTakesThem) {
  Fabric fabric;
  auto [net, sgd] = fabric.setup(BodyHead(), [](auto parameters) { return lib::SGD(parameters, 0.1); });
  fabric.backward(net(torch::ones({2, 3})).sum());
  const auto before = net->head->bias.detach().clone();
  sgd.step();
  EXPECT_FALSE(torch::equal(before, net->head->bias));
}

/// One training in which the program names the optimizer, and one in which a function makes it.
void train_twice(const char* strategy) {
  const auto data = torch::sin(torch::arange(12, torch::kFloat)).view({4, 3});
  const auto train = [&](auto&& prepare) {
    torch::manual_seed(7);
    Accelerator accelerator({.strategy = strategy});
    BodyHead net;
    auto [model, optimizer] = prepare(accelerator, net);
    const auto x = accelerator.split_between_processes(data);
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      accelerator.backward(model(x).square().mean());
      optimizer.step();
    }
    return accelerator.reduce(model(x).detach().sum(), "sum").template item<float>();
  };
  const float named = train([](Accelerator& accelerator, BodyHead& net) {
    return accelerator.prepare(net, lib::AdamW(net->parameters(), 0.05));
  });
  const float made = train([](Accelerator& accelerator, BodyHead& net) {
    return accelerator.prepare(net, [](auto parameters) { return lib::AdamW(parameters, 0.05); });
  });
  EXPECT_EQ(named, made) << strategy;
}

TEST(FunctionArgument, TrainsAsANamedOptimizerOnTwoRanks) {
  testing::as_ranks(2, [] {
    train_twice("ddp");
    train_twice("fsdp");
  });
}

}  // namespace
}  // namespace muster
