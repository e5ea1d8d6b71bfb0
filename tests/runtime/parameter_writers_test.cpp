#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"
#include "muster/optim/averaging.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

// Whatever writes weights, under every way to cut them: all ranks see what was written, and training goes on from it.
namespace muster::writers {
namespace {

const std::vector<std::string> kWays{"zero1", "zero2", "fsdp"};

/// Its weights are large enough to be copied as bytes where that is possible.
struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return out(torch::tanh(in(x))); }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(300, 301))},
      out{register_module("out", torch::nn::Linear(301, 5))};
};
TORCH_MODULE(Net);

Net make() {
  torch::manual_seed(4);
  return {};
}

torch::Tensor inputs(int step, int rank) {
  return torch::cos(torch::arange(1200, torch::kFloat) * (step + 2) + 5 * rank).view({4, 300});
}

struct Course {
  explicit Course(const Strategy& strategy)
      : accelerator({.strategy = strategy}), net(make()), model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(torch::optim::Adam(net->parameters(), 1e-2))) {}
  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      accelerator.backward(model(inputs(step++, accelerator.process_index())).square().mean());
      optimizer.step();
      optimizer.zero_grad();
      if (average) average->update();
    }
  }
  void look() {
    const torch::NoGradGuard no_grad;
    seen.push_back(model(inputs(50, 0)).detach().clone());
  }
  void look_at_weights() {
    for (auto& [name, value] : model.prepared()->managed->full_state(false)) seen.push_back(value.clone());
  }

  Accelerator accelerator;
  Net net;
  Model<NetImpl> model;
  Optimizer optimizer;
  std::optional<AveragedModel> average;
  int step = 0;
  std::vector<torch::Tensor> seen;  // answers and weights in the order in which they came
};

/// What is done to a model that is cut must show what it shows where the model is whole, on all ranks.
void expect_same_everywhere(const std::function<void(Course&)>& job, const std::vector<std::string>& ways = kWays) {
  testing::as_ranks(2, [&] {
    const auto run = [&](const Strategy& strategy) {
      Course course(strategy);
      job(course);
      course.train(1);
      course.look_at_weights();
      return course.seen;
    };
    const auto wanted = run("ddp");
    for (const auto& way : ways) {
      const auto seen = run(way.c_str());
      ASSERT_EQ(seen.size(), wanted.size()) << way;
      for (size_t i = 0; i < seen.size(); ++i)
        EXPECT_EQ(testing::difference_in_bits(seen[i], wanted[i]), "") << way << ", " << i;
    }
  });
}

void train_with_average(Course& course, AveragingKind kind) {
  course.average.emplace(course.model, AveragingOptions{.decay = 0.6, .kind = kind});
  course.train(3);
  course.average->use([&] { course.look(); });
  course.look();
  course.train(2);
  const auto thrown = [&] {
    course.average->use([&] {
      course.look();
      throw std::runtime_error("the user's own");
    });
  };
  EXPECT_THROW(thrown(), std::runtime_error);
  course.train(1);
  course.average->copy_to_module();
  course.look();
}

TEST(ParameterWriters, AnExponentialAverageIsLentAndTakenBack) {
  expect_same_everywhere([](Course& course) { train_with_average(course, AveragingKind::ema); });
}

TEST(ParameterWriters, AStochasticAverageIsLentAndTakenBack) {
  expect_same_everywhere([](Course& course) { train_with_average(course, AveragingKind::swa); });
}

void expect_average_from_before(const char* way) {
  Accelerator accelerator({.strategy = way});
  auto net = make();
  AveragedModel early(*net, {.decay = 0.5});
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  AveragedModel late(model, {.decay = 0.5}), of_module(*net, {.decay = 0.5});
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model(inputs(step, accelerator.process_index())).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    for (auto* average : {&early, &late, &of_module}) average->update();
  }
  const auto answer = [&, &model = model] {
    const torch::NoGradGuard no_grad;
    return model(inputs(50, 0)).detach().clone();
  };
  const auto trained = answer(), averaged = late.use(answer);
  EXPECT_FALSE(torch::equal(averaged, trained)) << way;
  for (auto* average : {&early, &of_module}) {
    EXPECT_EQ(testing::difference_in_bits(average->use(answer), averaged), "") << way;
    EXPECT_EQ(testing::difference_in_bits(answer(), trained), "") << way;
  }
  early.copy_to_module();
  EXPECT_EQ(testing::difference_in_bits(answer(), averaged), "") << way;
}

TEST(ParameterWriters, AnAverageMadeBeforePrepareFollowsTheModule) {
  testing::as_ranks(2, [] {
    expect_average_from_before("ddp");
    for (const auto& way : kWays) expect_average_from_before(way.c_str());
  });
}

TEST(ParameterWriters, AnAverageWithUpdatesFromBeforeIsRefusedWhereItIsCut) {  // MU583
  testing::as_ranks(2, [] {
    for (const char* way : {"ddp", "zero1", "fsdp"}) {
      Accelerator accelerator({.strategy = way});
      auto net = make();
      AveragedModel average(*net);
      average.update();
      auto model = accelerator.prepare(net);
      EXPECT_EQ(testing::thrown_id([&] { average.update(); }), way == std::string("ddp") ? "no error" : "MU583") << way;
    }
  });
}

/// The others give the averages back while the main process still evaluates.
TEST(ParameterWriters, TheMainProcessEvaluatesAnAverageAlone) {
  expect_same_everywhere(
      [](Course& course) {
        course.average.emplace(course.model, AveragingOptions{.decay = 0.6});
        course.train(2);
        for (int i = 0; i < 3; ++i) {
          torch::Tensor answer = torch::zeros({4, 5});
          course.average->use([&] {
            const torch::NoGradGuard no_grad;
            if (course.accelerator.is_main_process()) answer = course.model(inputs(50, 0)).detach().clone();
          });
          course.accelerator.group().broadcast(answer, 0);
          course.seen.push_back(answer);
          course.train(1);
        }
      },
      {"zero1", "zero2"});
}

TEST(ParameterWriters, ACheckpointIsLoaded) {
  expect_same_everywhere([](Course& course) {
    const auto folder = testing::shared_folder(course.accelerator.group());
    course.train(2);
    course.accelerator.save_state(folder.path() / "state");
    course.train(2);
    course.accelerator.load_state(folder.path() / "state");
    course.look();
    course.accelerator.wait_for_everyone();
  });
}

TEST(ParameterWriters, SummonedValuesAreWritten) {
  expect_same_everywhere([](Course& course) {
    const bool sharded = course.model.prepared()->managed->sharded();
    const auto halve = [&](bool here) {
      const torch::NoGradGuard no_grad;
      if (here) course.net->in->weight.mul_(0.5);
    };
    course.train(1);
    course.accelerator.summon_full_params(course.model, [&] { halve(true); });
    course.look();
    course.train(1);
    course.accelerator.summon_full_params(
        course.model, [&] { halve(!sharded || course.accelerator.is_main_process()); }, {.rank0_only = true});
    course.look();
  });
}

/// Functions that write a module's tensors: in summoned values they work, and elsewhere they are refused, whatever
/// memory is there.
TEST(ParameterWriters, LoadersOfModulesWriteSummonedValuesOnly) {  // MU162
  expect_same_everywhere([](Course& course) {
    const auto folder = testing::shared_folder(course.accelerator.group());
    torch::manual_seed(77);
    const Net other;
    if (course.accelerator.is_main_process()) save_weights(weights_of(*other), folder.path());
    course.accelerator.wait_for_everyone();
    course.train(1);
    const bool sharded = course.model.prepared()->managed->sharded();
    const std::vector<std::function<void()>> writers{
        [&] { load_into(weights_of(*course.net), folder.path()); },
        [&] { load_state_dict(*course.net, state_dict(*other)); },
        [&] {
          copy_values({{course.net->in->weight, other->in->weight}});
        },
    };
    for (const auto& write : writers) {
      if (sharded) {
        EXPECT_EQ(testing::thrown_id(write), "MU162");
      }
      course.look();
      course.accelerator.summon_full_params(course.model, write);
      course.look();
      course.train(1);
    }
    course.accelerator.wait_for_everyone();
  });
}

TEST(ParameterWriters, LocalSgdAveragesWholeParametersAndBuffersOnly) {  // MU159
  testing::as_ranks(2, [] {
    for (const auto& way : kWays) {
      Course course(way.c_str());
      EXPECT_EQ(testing::thrown_id([&] { const auto local = course.accelerator.local_sgd(course.model); }), "MU159")
          << way;
    }
    Accelerator accelerator({.strategy = "ddp"});
    torch::nn::BatchNorm1d norm(3);
    auto [model, optimizer] = accelerator.prepare(norm, torch::optim::SGD(norm->parameters(), 0.1));
    auto local = accelerator.local_sgd(model, {.local_sgd_steps = 2});
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(inputs(step, accelerator.process_index()).view({400, 3})).square().mean());
      optimizer.step();
      optimizer.zero_grad();
      local.step();
    }
    for (const auto& value : {norm->weight.detach(), norm->running_mean}) {
      auto of_main = value.clone();
      accelerator.group().broadcast(of_main, 0);
      EXPECT_EQ(testing::difference_in_bits(value, of_main), "");
    }
  });
}

/// Steps within use() would change the averages and leave the weights of training as they were.
TEST(ParameterWriters, AStepWhileAveragesAreLentIsRefused) {
  testing::as_ranks(2, [] {
    for (const char* way : {"ddp", "zero1", "zero2", "fsdp"}) {
      SCOPED_TRACE(way);
      Course course(way);
      course.average.emplace(course.model, AveragingOptions{.decay = 0.6});
      course.train(2);
      auto average = std::exchange(course.average, std::nullopt);
      const auto before = course.model.prepared()->managed->full_state(false);
      const auto message = testing::thrown([&] { average->use([&] { course.train(1); }); });
      EXPECT_EQ(message.substr(0, 5), "MU188") << message;
      const auto after = course.model.prepared()->managed->full_state(false);
      for (size_t i = 0; i < after.size(); ++i)
        EXPECT_EQ(testing::difference_in_bits(after[i].second, before[i].second), "") << before[i].first;
      course.optimizer.zero_grad();
      course.average = std::move(average);
      EXPECT_NO_THROW(course.train(2));
      EXPECT_NO_THROW(course.average->use([&] { course.look(); }));
    }
  });
}

/// An average that knows the bare module only, and an optimizer that nobody prepared.
TEST(ParameterWriters, AStepWhileAveragesOfABareModuleAreLentIsSaid) {
  auto net = make();
  AveragedModel average(*net, {.decay = 0.5});
  torch::optim::Adam adam(net->parameters(), 0.1);
  average.update();
  const auto before = net->in->weight.detach().clone();
  const auto message = testing::thrown([&] {
    average.use([&] {
      net(inputs(0, 0)).sum().backward();
      adam.step();
    });
  });
  EXPECT_EQ(message.substr(0, 5), "MU188") << message;
  EXPECT_EQ(testing::difference_in_bits(net->in->weight.detach(), before), "");
  EXPECT_NO_THROW(average.use([&] { net(inputs(0, 0)); }));
}

}  // namespace
}  // namespace muster::writers
