// A rank whose loss misses the model takes part in the others' step.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "muster/strategy/options.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/missing_loss_model.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"

namespace muster::missing_loss {
namespace {

bool misses(int step, int rank) { return step > 0 && step % 3 == rank; }

/// One process: zeros where a rank's batch is empty.
std::vector<Tensor> trained_alone(int world, bool clips) {
  Small net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  for (int step = 0; step < 7; ++step) {
    for (int rank = 0; rank < world; ++rank)
      if (!misses(step, rank)) (loss_of(net(inputs(step, rank))) / world).backward();
    if (clips) torch::nn::utils::clip_grad_norm_(net->parameters(), 0.2);
    sgd.step();
    sgd.zero_grad();
  }
  return net->parameters();
}

/// Where the first call after backward is clipping, unscaling or the step.
enum class First { step, clip, unscale, unscale_all };

void expect_training_with_zeros(const std::string& strategy, First first, const std::string& precision) {
  SCOPED_TRACE(strategy + ", " + precision + ", first " + std::to_string(static_cast<int>(first)));
  Accelerator accelerator({.grad_scaler = {.init_scale = 256},
                           .mixed_precision = Precision::parse(precision),
                           .strategy = Strategy::parse(strategy)});
  Small net;
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5)));
  const int rank = accelerator.process_index(), world = accelerator.num_processes();
  for (int step = 0; step < 7; ++step) {
    const auto rows = misses(step, rank) ? inputs(step, rank).narrow(0, 0, 0) : inputs(step, rank);
    if (rows.size(0) > 0) accelerator.backward(loss_of(model(rows).to(torch::kFloat)));
    if (first == First::clip) accelerator.clip_grad_norm_(model, 0.2);
    if (first == First::unscale) accelerator.unscale_gradients(optimizer);
    if (first == First::unscale_all) accelerator.unscale_gradients();
    optimizer.step();
    EXPECT_FALSE(optimizer.step_was_skipped());
    optimizer.zero_grad();
  }
  const auto expected = trained_alone(world, first == First::clip);
  const double tolerance = precision == "no" ? 1e-5 : 1e-2;
  size_t i = 0;
  for (const auto& [name, value] : model.prepared()->managed->full_state(false)) {
    const auto all = accelerator.gather(value.view({1, -1}));
    for (int r = 1; r < world; ++r) EXPECT_EQ(testing::difference_in_bits(all[r], all[0]), "") << name;
    EXPECT_EQ(testing::difference(value, expected[i++].detach(), tolerance, tolerance), "") << name;
  }
}

TEST(MissingLoss, CountsAsZerosWhereverUnusedParametersMayBe) {
  for (const int world : {2, 3})
    testing::as_ranks(
        world,
        [] {
          for (const std::string strategy : {"ddp_find_unused_parameters_true", "zero1", "zero2"})
            for (const auto first : {First::step, First::clip, First::unscale, First::unscale_all})
              for (const std::string precision : {"no", "fp16"}) expect_training_with_zeros(strategy, first, precision);
        },
        std::to_string(world));
}

/// Two models of one shape in one loss, which rank 1 misses in one step; it then clips in the program's order of
/// models, and backward meets them in the reverse. What the steps ended in.
std::string fate_of_alike_models(const std::string& strategy, int missing) {
  Accelerator accelerator({.strategy = Strategy::parse(strategy)});
  Small first(4, 4), second(4, 4);
  auto [a, b, of_a, of_b] = accelerator.prepare(first, second, torch::optim::SGD(first->parameters(), 0.1),
                                                torch::optim::SGD(second->parameters(), 0.1));
  for (int step = 0; step < 3; ++step) {
    const auto message = testing::thrown([&, a = a, b = b, of_a = of_a, of_b = of_b]() mutable {
      if (step != missing || accelerator.process_index() != 1)
        accelerator.backward(loss_of(b(a(inputs(step, accelerator.process_index())))));
      accelerator.clip_grad_norm_(a, 0.2), accelerator.clip_grad_norm_(b, 0.2);
      of_a.step(), of_b.step();
      of_a.zero_grad(), of_b.zero_grad();
    });
    if (message != "no error") return message;
  }
  for (const auto& model : {a, b})
    for (const auto& [name, value] : model.prepared()->managed->full_state(false)) {
      const auto all = accelerator.gather(value.view({1, -1}));
      EXPECT_EQ(testing::difference_in_bits(all[1], all[0]), "") << name;
    }
  return "well";
}

TEST(MissingLoss, ThroughSeveralModelsIsMetInTheOrderOfEarlierBackwards) {
  for (const std::string strategy : {"ddp_find_unused_parameters_true", "zero1", "zero2"})
    testing::as_ranks(
        2, [&] { EXPECT_EQ(fate_of_alike_models(strategy, /*missing=*/2), "well") << strategy; }, strategy);
}

/// Generator and judge, each with batch norm and an optimizer of its own; rank 1 has no loss for one of them in one
/// step.
void expect_game_with_zeros(const std::string& strategy, int world, bool misses_generator) {
  Accelerator accelerator({.strategy = Strategy::parse(strategy)});
  const auto make = [](int64_t outputs) {
    return torch::nn::Sequential(torch::nn::Linear(4, 5), torch::nn::BatchNorm1d(5), torch::nn::Linear(5, outputs));
  };
  torch::manual_seed(3);
  auto maker = make(4), judge = make(1);
  auto [g, j, first, second] = accelerator.prepare(maker, judge, torch::optim::SGD(maker->parameters(), 0.1),
                                                   torch::optim::SGD(judge->parameters(), 0.1));
  const int rank = accelerator.process_index();
  for (int step = 0; step < 5; ++step) {
    const bool missing = step == 2 && rank == 1;
    const auto x = inputs(step, rank);
    second.zero_grad();
    if (!missing || misses_generator) accelerator.backward(loss_of(j(g(x).detach()) - j(x)));
    second.step();
    first.zero_grad();
    if (!missing || !misses_generator) accelerator.backward(loss_of(j(g(x))));
    first.step();
  }
  for (const auto& model : {g, j})
    for (const auto& [name, value] : model.prepared()->managed->full_state(false)) {
      const auto all = accelerator.gather(value.to(torch::kFloat).view({1, -1}));
      for (int r = 1; r < world; ++r) EXPECT_EQ(testing::difference_in_bits(all[r], all[0]), "") << name;
    }
}

/// In a model with an unused parameter nothing is sent before the end of backward, so the order of the ends is that of
/// all messages.
struct SpareImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(used(x)); }
  torch::nn::Linear used{register_module("used", torch::nn::Linear(4, 4))},
      unused{register_module("unused", torch::nn::Linear(4, 4))};
};
TORCH_MODULE(Spare);

void expect_one_order_of_ends(const std::string& strategy, int missing) {
  Accelerator accelerator({.strategy = Strategy::parse(strategy)});
  Spare first, second;
  std::vector<torch::Tensor> parameters = first->parameters();
  for (const auto& parameter : second->parameters()) parameters.push_back(parameter);
  auto [a, b, optimizer] = accelerator.prepare(first, second, torch::optim::SGD(parameters, 0.1));
  for (int step = 0; step < 3; ++step) {
    const auto x = torch::full({2, 4}, 0.1 * (accelerator.process_index() + step));
    if (step != missing || accelerator.process_index() != 1) accelerator.backward(b(a(x)).pow(2).mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& model : {a, b})
    for (const auto& [name, value] : model.prepared()->managed->full_state(false)) {
      const auto all = accelerator.gather(value.view({1, -1}));
      EXPECT_EQ(testing::difference_in_bits(all[1], all[0]), "") << name << ", " << strategy;
    }
}

TEST(MissingLoss, ThroughModelsWithUnusedParametersHasOneOrderOfEnds) {
  testing::as_ranks(2, [] {
    for (const std::string strategy : {"ddp_find_unused_parameters_true", "zero1", "zero2"})
      for (const int missing : {0, 1}) expect_one_order_of_ends(strategy, missing);
  });
}

TEST(MissingLoss, OfAGeneratorGoesThroughItsJudge) {
  for (const std::string strategy : {"ddp_find_unused_parameters_true", "zero1", "zero2"})
    for (const int world : {2, 3})
      testing::as_ranks(
          world,
          [&] {
            for (const bool generator : {true, false}) expect_game_with_zeros(strategy, world, generator);
          },
          strategy + std::to_string(world));
}

TEST(MissingLoss, GradientsOfModelsThatAreAlikeDoNotGoTogether) {
  for (const std::string strategy : {"ddp_find_unused_parameters_true", "zero1", "zero2"})
    testing::as_ranks(
        2,
        [&] {
          const auto fate = fate_of_alike_models(strategy, /*missing=*/0);  // no backward was there to learn from
          EXPECT_EQ(fate.substr(0, 5), "MU050") << strategy << ": " << fate;
          EXPECT_NE(fate.find("model 1"), std::string::npos) << fate;
          EXPECT_NE(fate.find("model 2"), std::string::npos) << fate;
          EXPECT_NE(fate.find("multiply by zero"), std::string::npos) << fate;
        },
        strategy);
}

TEST(MissingLoss, IsAnErrorOnEveryRankThatNamesTheStepWhereAllParametersAreDue) {
  testing::as_ranks(3, [] {
    Accelerator accelerator({.strategy = "ddp"});
    Small net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    auto run = [&, model = model, optimizer = optimizer](int step) mutable {
      optimizer.zero_grad();
      if (step != 2 || accelerator.process_index() != 1) accelerator.backward(loss_of(model(inputs(step, 0))));
      optimizer.step();
    };
    run(0);
    run(1);
    const auto message = testing::thrown([&] { run(2); });
    EXPECT_EQ(message.substr(0, 5), "MU152") << message;
    EXPECT_NE(message.find("only some ranks have a gradient for 'a.weight'"), std::string::npos) << message;
    EXPECT_NE(message.find("in gradient step 2"), std::string::npos) << message;
    EXPECT_NO_THROW(run(3));
    const auto all = accelerator.gather(net->a->weight.detach().view({1, -1}));
    EXPECT_TRUE(torch::equal(all[0], all[1]));
    EXPECT_TRUE(torch::equal(all[0], all[2]));
  });
}

TEST(MissingLoss, IsAnErrorThatNamesTheUnitWhereParametersAreCut) {
  const auto test = [] {
    Accelerator accelerator({.strategy = FSDP{.unit_min_elements = 1}});
    Small net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const auto message = testing::thrown([&, model = model, optimizer = optimizer]() mutable {
      for (int step = 0; step < 4; ++step) {
        if (step != 2 || accelerator.process_index() != 1) accelerator.backward(loss_of(model(inputs(step, 0))));
        optimizer.step();
        optimizer.zero_grad();
      }
      accelerator.wait_for_everyone();
    });
    EXPECT_EQ(message.substr(0, 5), "MU050") << message;
    EXPECT_NE(message.find("unit '"), std::string::npos) << message;
    EXPECT_NE(message.find("gradient step 2"), std::string::npos) << message;
  };
  testing::as_ranks(2, test);
}

/// Generator and judge, one optimizer each.
TEST(MissingLoss, CostsNothingWhereRanksHaveTheirLosses) {
  for (const std::string strategy : {"ddp", "zero2"})
    testing::as_ranks(
        2,
        [strategy] {
          Accelerator accelerator({.strategy = Strategy::parse(strategy)});
          Small maker(4, 4), judge(4, 1);
          auto [g, j, first, second] = accelerator.prepare(maker, judge, torch::optim::SGD(maker->parameters(), 0.1),
                                                           torch::optim::SGD(judge->parameters(), 0.1));
          const auto rounds = [&, g = g, j = j] {
            return std::pair(g.prepared()->managed->gradient_reductions()->reduction_count(),
                             j.prepared()->managed->gradient_reductions()->reduction_count());
          };
          for (int64_t step = 1; step <= 4; ++step) {
            const auto x = inputs(static_cast<int>(step), accelerator.process_index());
            second.zero_grad();
            accelerator.backward(loss_of(j(x)));
            accelerator.backward(loss_of(j(g(x).detach())));
            accelerator.clip_grad_norm_(j, 1.0);
            second.step();
            first.zero_grad();
            accelerator.backward(loss_of(j(g(x))));
            accelerator.clip_grad_norm_(g, 1.0);
            first.step();
            EXPECT_EQ(rounds(), std::pair(step, 3 * step));
          }
          second.zero_grad();
          second.step();  // no rank has gradients for it
          for (const auto& managed : {g.prepared()->managed, j.prepared()->managed})
            for (const auto& [name, value] : managed->full_state(false)) {
              const auto all = accelerator.gather(value.view({1, -1}));
              EXPECT_TRUE(torch::equal(all[0], all[1])) << name;
            }
        },
        strategy);
}

}  // namespace
}  // namespace muster::missing_loss
