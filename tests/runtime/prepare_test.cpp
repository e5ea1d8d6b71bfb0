#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/base/error.h"
#include "muster/fabric.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

struct ForkImpl : torch::nn::Module {
  torch::Tensor encode(torch::Tensor x) { return a(x).relu(); }
  std::tuple<torch::Tensor, torch::Tensor> both(torch::Tensor x) {
    auto hidden = encode(x);
    return {hidden, b(hidden)};
  }
  torch::Tensor forward(torch::Tensor x) { return b(encode(x)); }
  torch::nn::Linear a{register_module("a", torch::nn::Linear(4, 8))}, b{register_module("b", torch::nn::Linear(8, 3))};
};
TORCH_MODULE(Fork);

using Labelled = std::vector<std::tuple<torch::Tensor, int64_t>>;

Labelled labelled(int64_t count) {
  Labelled result;
  for (int64_t i = 0; i < count; ++i) result.emplace_back(torch::full({4}, static_cast<float>(i)), i % 3);
  return result;
}

TEST(Prepare, KeepsWhatAHolderContainsOnceTheHolderIsGone) {
  Accelerator accelerator;
  auto model = accelerator.prepare(*torch::nn::Linear(2, 3));  // the holder is gone after this line
  EXPECT_FALSE(model->weak_from_this().expired());
  EXPECT_EQ(model(torch::ones({1, 2})).size(1), 3);
}

TEST(Prepare, ReturnsHandlesInTheOrderGiven) {
  Accelerator accelerator;
  Fork net;
  torch::optim::AdamW adam(net->parameters(), 1e-3);
  torch::optim::StepLR schedule(adam, 1, 0.5);
  auto data = labelled(8);
  auto [scheduler, batches, optimizer, model] =
      accelerator.prepare(schedule, DataLoader(data, {.batch_size = 4}), adam, net);
  static_assert(std::same_as<std::remove_cvref_t<decltype(model)>, Model<ForkImpl>>);
  static_assert(std::same_as<std::remove_cvref_t<decltype(optimizer)>, Optimizer>);
  static_assert(std::same_as<std::remove_cvref_t<decltype(scheduler)>, Scheduler>);
  static_assert(
      std::same_as<std::remove_cvref_t<decltype(batches)>, DataLoader<std::tuple<torch::Tensor, torch::Tensor>>>);
  EXPECT_EQ(model.ptr(), net.ptr());
  EXPECT_EQ(&optimizer.inner(), &adam);
  scheduler.step();  // LibTorch's first step leaves the rate as it is
  scheduler.step();
  EXPECT_DOUBLE_EQ(adam.param_groups()[0].options().get_lr(), 5e-4);
}

TEST(Prepare, GivesOneArgumentBackBare) {
  Accelerator accelerator;
  auto model = accelerator.prepare(Fork());
  static_assert(std::same_as<decltype(model), Model<ForkImpl>>);
  ForkImpl value;
  auto borrowed = accelerator.prepare(value);
  EXPECT_EQ(&*borrowed, &value);
  auto pointer = std::make_shared<ForkImpl>();
  EXPECT_EQ(accelerator.prepare(pointer).ptr(), pointer);
}

TEST(Prepare, TakesAModuleTwiceAsOne) {
  Accelerator accelerator;
  Fork net;
  EXPECT_EQ(accelerator.prepare(net).prepared(), accelerator.prepare(net).prepared());
}

TEST(Prepare, RefusesWhatCannotWork) {
  Accelerator accelerator;
  EXPECT_EQ(testing::thrown_id([&] { accelerator.prepare(Fork(nullptr)); }), "MU173");
  Fork net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  torch::optim::StepLR schedule(sgd, 1);
  EXPECT_EQ(testing::thrown_id([&] { accelerator.prepare(schedule); }), "MU174");
  EXPECT_EQ(testing::thrown_id([] { Strategy::parse("dpp"); }), "MU170");
  EXPECT_EQ(testing::thrown_id([] { Precision::parse("bf17"); }), "MU130");
}

TEST(Prepare, StepsAPlateauSchedulerByItsMetric) {
  Accelerator accelerator;
  Fork net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  torch::optim::StepLR by_step(sgd, 100);
  auto [optimizer, scheduler, other] = accelerator.prepare(
      sgd, torch::optim::ReduceLROnPlateauScheduler(sgd, torch::optim::ReduceLROnPlateauScheduler::min, 0.5, 0),
      by_step);
  scheduler.step(1.0);
  scheduler.step(2.0);
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), 0.5);
  EXPECT_EQ(testing::thrown_id([&, s = scheduler] { s.step(); }), "MU180");
  EXPECT_EQ(testing::thrown_id([&, s = other] { s.step(1.0); }), "MU180");
}

TEST(Prepare, TakesOurSchedulers) {
  Accelerator accelerator;
  Fork net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [optimizer, scheduler, plateau] = accelerator.prepare(sgd, ExponentialLR(sgd, {.gamma = 0.5}),
                                                             ReduceLROnPlateau(sgd, {.factor = 0.5, .patience = 0}));
  scheduler.step();
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), 0.5);
  EXPECT_EQ(scheduler.inner()->last_epoch(), 1);
  plateau.step(1.0);
  plateau.step(2.0);
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), 0.25);
  EXPECT_EQ(testing::thrown_id([&, s = plateau] { s.step(); }), "MU180");
  EXPECT_EQ(testing::thrown_id([&, s = scheduler] { s.step(1.0); }), "MU180");
  torch::optim::SGD other(net->parameters(), 1.0);
  EXPECT_EQ(testing::thrown_id([&] { accelerator.prepare(ExponentialLR(other, {.gamma = 0.5})); }), "MU174");
}

TEST(Prepare, LetsOneSchedulerStepWithoutItsOptimizer) {
  for (const bool all : {true, false}) {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .step_scheduler_with_optimizer = all});
    Fork net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer, by_epoch, by_update] = accelerator.prepare(
        net, sgd, LambdaLR(sgd, {.lr_lambda = [](int64_t) { return 1.0; }}), ExponentialLR(sgd, {.gamma = 0.5}));
    by_epoch.set_step_with_optimizer(false);
    by_update.set_step_with_optimizer(true);
    for (int i = 0; i < 4; ++i) {
      auto window = accelerator.accumulate(model);
      by_epoch.step();
      by_update.step();
    }
    EXPECT_EQ(by_epoch->last_epoch(), 4);
    EXPECT_EQ(by_update->last_epoch(), 2);
  }
}

TEST(Clip, SkipsWhatIsNotFiniteAndTheScheduleWithIt) {
  Accelerator accelerator;
  Fork net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, ExponentialLR(sgd, {.gamma = 0.5}));
  const auto train = [&](double factor) {
    accelerator.backward(model(torch::ones({2, 4})).sum() * factor);
    const double norm = accelerator.clip_grad_norm_(model, 1.0, {.skip_if_nonfinite = true});
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    return norm;
  };
  train(1.0);
  const auto before = net->a->weight.detach().clone();
  EXPECT_TRUE(std::isnan(train(std::nan(""))));
  EXPECT_TRUE(torch::equal(net->a->weight, before));
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_EQ(scheduler.inner()->last_epoch(), 1);
  train(1.0);
  EXPECT_FALSE(torch::equal(net->a->weight, before));
  EXPECT_EQ(scheduler.inner()->last_epoch(), 2);
}

TEST(Clip, ParametersMayBeEditedAfterASkippedStep) {
  Accelerator accelerator;
  Fork net;
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1)));
  auto loss = model(torch::ones({2, 4})).sum();
  accelerator.backward(loss);
  net->b->bias.mutable_grad().fill_(std::nan(""));
  accelerator.clip_grad_norm_(model, 1.0, {.skip_if_nonfinite = true});
  optimizer.step();
  EXPECT_TRUE(optimizer.step_was_skipped());
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.clamp_(-0.01, 0.01);
  }
  optimizer.zero_grad();
}

TEST(Clip, ClipsEachGroupByItself) {
  Accelerator accelerator;
  Fork net;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->a->parameters());
  groups.emplace_back(net->b->parameters());
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(groups, torch::optim::SGDOptions(0.1)));
  accelerator.backward(model(torch::ones({2, 4})).sum() * 100);
  const auto norms = accelerator.clip_grad_norm_(optimizer, {0.5, 1e9}),
             after = accelerator.clip_grad_norm_(optimizer, 1e9);
  EXPECT_GT(norms[0], 1.0);
  EXPECT_NEAR(after[0], 0.5, 1e-5);
  EXPECT_NEAR(after[1], norms[1], 1e-5);
  EXPECT_EQ(testing::thrown_id([&, o = optimizer] { accelerator.clip_grad_norm_(o, {1.0, 1.0, 1.0}); }), "MU135");
}

TEST(Model, RunsAnyEntryInTheForwardScope) {
  Accelerator accelerator({.mixed_precision = "bf16"});
  auto model = accelerator.prepare(Fork());
  const auto x = torch::ones({2, 4});
  auto [hidden, out] = model.run(&ForkImpl::both, x);
  EXPECT_EQ(hidden.scalar_type(), torch::kFloat);  // computed in bfloat16, converted
  EXPECT_TRUE(torch::equal(out, model(x)));
  EXPECT_TRUE(torch::equal(hidden, hidden.to(torch::kBFloat16).to(torch::kFloat)));
  EXPECT_TRUE(torch::equal(model.run([](ForkImpl& net, torch::Tensor t) { return net.encode(t); }, x), hidden));
  const auto bare = model->encode(x);
  EXPECT_FALSE(torch::equal(bare, bare.to(torch::kBFloat16).to(torch::kFloat)));  // no scope, no autocast
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Model, ConvertsByThePrecision) {
  const auto dtypes = [](Precision precision) {
    Fabric fabric({.precision = precision});
    auto model = fabric.setup(Fork());
    const auto out = model(torch::ones({1, 4}));
    return std::make_pair(model->a->weight.scalar_type(), out.scalar_type());
  };
  EXPECT_EQ(dtypes("32-true"), std::make_pair(torch::kFloat, torch::kFloat));
  EXPECT_EQ(dtypes("bf16-mixed"), std::make_pair(torch::kFloat, torch::kFloat));
  EXPECT_EQ(dtypes("bf16-true"), std::make_pair(torch::kBFloat16, torch::kFloat));
  EXPECT_EQ(dtypes("64-true"), std::make_pair(torch::kDouble, torch::kDouble));
}

using Several = std::vector<torch::Tensor>;
struct Settings {
  int64_t factor = 1;
};

struct GathererImpl : torch::nn::Module {
  torch::Tensor forward(const Several& several,
                        std::map<std::string, std::tuple<torch::Tensor, std::optional<torch::Tensor>>> named,
                        const Settings& settings) {
    seen = several[0].scalar_type();
    auto sum = layer(several[0]);
    for (auto& [name, both] : named) sum = sum + layer(std::get<0>(both)) + layer(std::get<1>(both).value());
    return sum * settings.factor;
  }
  torch::Tensor remember(Several& memory, torch::Tensor x) {
    memory.push_back(layer(x));
    return memory.back();
  }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 2))};
  torch::ScalarType seen = torch::kInt;
};
TORCH_MODULE(Gatherer);

TEST(Model, ConvertsNestedInputs) {
  Fabric fabric({.precision = "bf16-true"});
  auto model = fabric.setup(Gatherer());
  const auto x = torch::ones({1, 4});
  Several several{x};
  const auto once = model->layer(x.to(torch::kBFloat16)).to(torch::kFloat);
  const std::map<std::string, std::tuple<torch::Tensor, std::optional<torch::Tensor>>> named{{"a", {x, x}}};
  const auto out = model(several, named, Settings{2});
  EXPECT_EQ(model->seen, torch::kBFloat16);
  EXPECT_TRUE(torch::allclose(out, 6 * once, 0.02));
  EXPECT_EQ(several[0].scalar_type(), torch::kFloat);  // the caller's own stays
  model.run(&GathererImpl::remember, several, x);
  EXPECT_EQ(several.size(), 2u);  // what the entry changes is the caller's own
}

TEST(Training, EqualsThePlainLoop) {
  const auto data = labelled(12);
  torch::manual_seed(1);
  Fork plain;
  torch::manual_seed(1);
  Fork net;
  torch::optim::AdamW adam(plain->parameters(), 1e-2);
  Accelerator accelerator;
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2), DataLoader(data, {.batch_size = 4}));
  for (auto epoch : accelerator.epochs(3)) {
    (void)epoch;
    for (auto& [x, y] : batches) {
      adam.zero_grad();
      torch::nn::functional::cross_entropy(plain(x), y).backward();
      torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
      adam.step();
      optimizer.zero_grad();
      accelerator.backward(torch::nn::functional::cross_entropy(model(x), y));
      accelerator.clip_grad_norm_(model, 0.5);
      optimizer.step();
    }
  }
  const auto ours = net->parameters(), theirs = plain->parameters();
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 1e-5, 1e-6)) << i;
}

TEST(OwnHandles, SteppingTheUsersOptimizerIsAnError) {
  Accelerator accelerator;
  Fork net;
  torch::optim::AdamW adam(net->parameters(), 1e-2);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  accelerator.backward(model(torch::ones({2, 4})).sum());
  adam.step();
  EXPECT_EQ(testing::thrown_id([&, o = optimizer]() mutable { o.step(); }), "MU133");
}

/// Two phases of fine-tuning: the optimizer of the first stays where it is.
TEST(OwnHandles, ASecondPreparedOptimizerOfTheSameParametersIsNoStranger) {
  const auto train = [](auto make_first, auto make_second) {
    Accelerator accelerator;
    Fork net;
    auto model = accelerator.prepare(net);
    auto first = accelerator.prepare(make_first(*net));
    const auto step = [&](Optimizer& optimizer) {
      accelerator.backward(model(torch::ones({2, 4})).sum());
      optimizer.step();
      optimizer.zero_grad();
    };
    step(first);
    auto second = accelerator.prepare(make_second(*net));
    for (int i = 0; i < 3; ++i) step(second);
    step(first);
    accelerator.backward(model(torch::ones({2, 4})).sum());
    first.step();  // both by one gradient
    second.step();
    first.zero_grad();
    second.zero_grad();
    accelerator.backward(model(torch::ones({2, 4})).sum());
    second.inner().step();  // by somebody else, as before
    EXPECT_EQ(testing::thrown_id([&] { second.step(); }), "MU133");
  };
  namespace optim = torch::optim;
  const auto adam = [](ForkImpl& net) { return optim::Adam(net.parameters(), optim::AdamOptions(1e-3)); };
  const auto sgd = [](ForkImpl& net) { return optim::SGD(net.parameters(), optim::SGDOptions(1e-3)); };
  train(adam, adam);
  train(sgd, sgd);
  train(adam, sgd);
}

TEST(OwnHandles, APreparedLineSearchIsNoStranger) {
  Accelerator accelerator;
  Fork net;
  auto [model, adam, lbfgs] =
      accelerator.prepare(net, torch::optim::Adam(net->parameters(), 1e-3),
                          torch::optim::LBFGS(net->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(4)));
  for (int i = 0; i < 2; ++i)
    lbfgs.step([&, &model = model, &lbfgs = lbfgs] {
      lbfgs.zero_grad();
      auto loss = model(torch::ones({2, 4})).square().sum();
      accelerator.backward(loss);
      return loss;
    });
}

TEST(OwnHandles, TheUsersOptimizerStaysGoodForOptions) {
  Accelerator accelerator;
  Fork net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto before = net->a->weight.detach().clone();
  accelerator.backward(model(torch::ones({2, 4})).sum());
  optimizer.step();
  EXPECT_TRUE(torch::equal(net->a->weight, before));
  sgd.param_groups()[0].options().set_lr(0.1);
  optimizer.step();
  EXPECT_FALSE(torch::equal(net->a->weight, before));
}

TEST(Prepare, FullParametersAreJustThereWhereNothingIsSharded) {
  Accelerator accelerator;
  torch::nn::Linear net(2, 3);
  auto model = accelerator.prepare(net);
  accelerator.summon_full_params(model, [&] { torch::nn::init::ones_(net->bias); });
  EXPECT_EQ(net->bias.sum().item<float>(), 3);
}

}  // namespace
}  // namespace muster
