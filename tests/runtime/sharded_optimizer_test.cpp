#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/optim/elementwise.h"
#include "muster/parallel/wrap.h"
#include "muster/strategy/options.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

namespace muster {
namespace {

namespace lib = torch::optim;
using SplitGroups = std::vector<lib::OptimizerParamGroup>;

/// Sizes that are no multiples of anything, a weight that lies transposed, a frozen parameter, a unit that is used
/// twice.
struct MixedNetImpl : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(7, 19))},
      again{register_module("again", wrap(torch::nn::Linear(19, 19)))},
      out{register_module("out", torch::nn::Linear(19, 3))};
  MixedNetImpl() {
    const torch::NoGradGuard no_grad;
    in->weight.set_data(in->weight.t().contiguous().t());
    out->bias.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(again(torch::tanh(again(torch::tanh(in(x))))))); }
};
TORCH_MODULE(MixedNet);

struct SignMomentum : ElementwiseOptimizer {
  explicit SignMomentum(SplitGroups groups)
      : ElementwiseOptimizer(std::move(groups), {{"lr", 0.01}, {"beta", 0.9}}, {"momentum", "mean_square"}) {}
  void update(const ElementwiseOptions& options, const ElementwiseUpdate& u) override {
    const double beta = options.at("beta");
    u.states[0].mul_(beta).add_(u.gradient, 1 - beta);
    u.states[1].mul_(beta).add_(u.gradient * u.gradient, 1 - beta);
    u.value.sub_(u.states[0].sign() * u.states[1].sqrt(), options.get_lr() / static_cast<double>(u.step));
  }
};

struct OptimizerCase {
  const char* name;
  std::function<std::unique_ptr<lib::Optimizer>(SplitGroups)> make;
};

const std::vector<OptimizerCase>& elementwise_cases() {
  static const std::vector<OptimizerCase> cases{
      {"SGD",
       [](SplitGroups g) {
         return std::make_unique<lib::SGD>(g, lib::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
       }},
      {"Adam", [](SplitGroups g) { return std::make_unique<lib::Adam>(g, lib::AdamOptions(0.01).amsgrad(true)); }},
      {"AdamW", [](SplitGroups g) { return std::make_unique<lib::AdamW>(g, lib::AdamWOptions(0.01)); }},
      {"Adagrad",
       [](SplitGroups g) {
         return std::make_unique<lib::Adagrad>(g, lib::AdagradOptions(0.05).initial_accumulator_value(0.1));
       }},
      {"RMSprop",
       [](SplitGroups g) {
         return std::make_unique<lib::RMSprop>(g, lib::RMSpropOptions(0.01).momentum(0.8).centered(true).eps(1e-3));
       }},
      {"SignMomentum", [](SplitGroups g) { return std::make_unique<SignMomentum>(g); }},
  };
  return cases;
}

struct OptimizerCourse {
  Strategy strategy = "ddp";
  bool optimizer_first = false;  ///< prepared before its model
  double clip = 0;               ///< the gradients' norm of that order is kept small
  int alone = 0;                 ///< steps of the optimizer by itself, before anything is prepared
  std::filesystem::path load = {}, save = {};
};

at::Tensor course_loss(const at::Tensor& answer) { return answer.pow(2).mean() + answer.sum() * 0.01; }

at::Tensor course_inputs(int step, int rank) {
  return torch::cos(torch::arange(28, torch::kFloat) * (step + 2) + 5 * rank).view({4, 7});
}

/// Two parameter groups; four steps together, of which a resumed course takes the last two.
std::vector<at::Tensor> train_course(const OptimizerCase& which, const OptimizerCourse& course) {
  torch::manual_seed(3);
  Accelerator accelerator({.strategy = course.strategy});
  MixedNet net;
  const auto all = net->parameters();
  const auto optimizer = which.make({lib::OptimizerParamGroup({all.begin(), all.begin() + 3}),
                                     lib::OptimizerParamGroup({all.begin() + 3, all.end()})});
  optimizer->param_groups()[1].options().set_lr(0.003);
  for (int step = 0; step < course.alone; ++step) {
    course_loss(net(course_inputs(step + 40, 0))).backward();
    optimizer->step();
    optimizer->zero_grad();
  }
  std::optional<Optimizer> prepared;
  if (course.optimizer_first) prepared = accelerator.prepare(*optimizer);
  auto model = accelerator.prepare(net);
  if (!prepared) prepared = accelerator.prepare(*optimizer);
  if (!course.load.empty()) accelerator.load_state(course.load);
  for (int step = course.load.empty() ? 0 : 2; step < 4; ++step) {
    if (step == 2 && !course.save.empty()) accelerator.save_state(course.save);
    accelerator.backward(course_loss(model(course_inputs(step, accelerator.process_index()))));
    if (course.clip > 0) {
      EXPECT_GT(accelerator.clip_grad_norm_(model, 0.01, {.norm_type = course.clip}), 0.01);
    }
    prepared->step();
    prepared->zero_grad();
  }
  std::vector<at::Tensor> weights;
  for (const auto& [name, tensor] : model.prepared()->managed->full_state(false))
    weights.push_back(tensor.detach().clone());
  return weights;
}

void expect_same_bits(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_EQ(testing::difference_in_bits(actual[i], expected[i]), "") << i;
}

TEST(ShardedOptimizers, EqualWholeOnesToTheBit) {
  testing::as_ranks(2, [] {
    const Accelerator first;
    for (const auto& which : elementwise_cases()) {
      SCOPED_TRACE(which.name);
      const auto whole = train_course(which, {.strategy = "ddp"});
      expect_same_bits(train_course(which, {.strategy = "fsdp"}), whole);
      expect_same_bits(train_course(which, {.strategy = "fsdp", .optimizer_first = true}), whole);
    }
  });
}

TEST(ShardedOptimizers, ClipToTheSameBitsHoweverGradientsAreCut) {
  testing::as_ranks(2, [] {
    const Accelerator first;
    const auto& sgd = elementwise_cases().front();  // a factor shows in its steps
    for (const double order : {1.0, 2.0, 2.5, double(INFINITY)}) {
      const auto whole = train_course(sgd, {.strategy = "ddp", .clip = order});
      for (const Strategy& strategy :
           {Strategy("zero1"), Strategy("zero2"), Strategy("fsdp"), Strategy(FSDP{.auto_wrap = false}),
            Strategy(FSDP{.reshard_after_forward = false, .unit_min_elements = 1})}) {
        SCOPED_TRACE(std::to_string(order) + ", " + std::string(strategy.name()));
        expect_same_bits(train_course(sgd, {.strategy = strategy, .clip = order}), whole);
      }
    }
  });
}

TEST(ShardedOptimizers, TakeTheirStateAlong) {
  testing::as_ranks(2, [] {
    const Accelerator first;
    for (const auto& which : elementwise_cases()) {
      SCOPED_TRACE(which.name);
      const auto whole = train_course(which, {.strategy = "ddp", .alone = 2});
      for (const bool optimizer_first : {false, true})
        expect_same_bits(train_course(which, {.strategy = "fsdp", .optimizer_first = optimizer_first, .alone = 2}),
                         whole);
    }
  });
}

TEST(ShardedOptimizers, AreSavedAndGoOnInAnyStrategy) {
  testing::as_ranks(2, [] {
    const Accelerator first;
    for (const auto& which : elementwise_cases()) {
      SCOPED_TRACE(which.name);
      const auto folder = testing::shared_folder(first.group());
      const auto expected = train_course(which, {.strategy = "fsdp", .save = folder.path() / "sharded"});
      train_course(which, {.strategy = "ddp", .save = folder.path() / "whole"});
      for (const char* saved : {"sharded", "whole"})
        for (const char* strategy : {"fsdp", "ddp"}) {
          SCOPED_TRACE(std::string(saved) + " into " + strategy);
          expect_same_bits(train_course(which, {.strategy = strategy, .alone = 1, .load = folder.path() / saved}),
                           expected);
        }
      first.wait_for_everyone();
    }
  });
}

TEST(IgnoredModules, StayWholeAndAreSavedWithTheOthers) {
  testing::as_ranks(2, [] {
    Accelerator accelerator({.strategy = FSDP{.ignored_modules = {"again"}}});
    MixedNet net;
    for (auto& parameter : net->again->parameters()) parameter.requires_grad_(false);
    auto [model, optimizer] = accelerator.prepare(net, lib::SGD(net->parameters(), 0.1));
    EXPECT_TRUE(std::isfinite(net->again->weight.sum().item<double>()));  // readable at any time
    const auto before = net->again->weight.clone();
    accelerator.backward(course_loss(model(course_inputs(0, accelerator.process_index()))));
    optimizer.step();
    EXPECT_TRUE(torch::equal(net->again->weight, before));
    const auto state = model.prepared()->managed->full_state(false);
    EXPECT_EQ(state.size(), net->named_parameters().size());
  });
}

TEST(ShardedOptimizers, ThoseThatNeedWholeParametersAreRefusedWhenPrepared) {
  testing::as_ranks(2, [] {
    Accelerator accelerator({.strategy = "fsdp"});
    MixedNet one, other;
    lib::LBFGS lbfgs(one->parameters(), lib::LBFGSOptions(1)), second(other->parameters(), lib::LBFGSOptions(1));
    auto model = accelerator.prepare(one);
    const auto message = testing::thrown([&] { accelerator.prepare(lbfgs); });
    EXPECT_EQ(message.rfind("MU134: LBFGS", 0), 0U) << message;
    auto prepared = accelerator.prepare(second);
    EXPECT_EQ(testing::thrown_id([&] { accelerator.prepare(other); }), "MU134");
  });
}

}  // namespace
}  // namespace muster
