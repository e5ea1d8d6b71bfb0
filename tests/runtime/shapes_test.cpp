#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"
#include "muster/optim/averaging.h"
#include "muster/parallel/managed_model.h"
#include "muster/testing/compare.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

// Parameters and buffers of every shape through all that broadcasts, gathers, clips, averages, saves, loads and
// reshards, under every strategy: the numbers are those of LibTorch alone.
namespace muster::shapes {
namespace {

namespace fs = std::filesystem;

const std::vector<const char*> kStrategies{"auto", "ddp", "zero1", "zero2", "fsdp"};

/// Without dimensions, without elements, of one element, transposed, and in half precision.
struct OddNetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    count.add_(1);
    const auto rows = torch::tanh(x.matmul(matrix) * scalar + one + one_by_one + half.to(torch::kFloat));
    return rows.sum() + empty.sum() + empty_rows.sum() + (rows * columns).square().mean();
  }
  torch::Tensor scalar = register_parameter("scalar", torch::randn({})),
                empty = register_parameter("empty", torch::randn({0})),
                empty_rows = register_parameter("empty_rows", torch::randn({0, 3})),
                one = register_parameter("one", torch::randn({1})),
                one_by_one = register_parameter("one_by_one", torch::randn({1, 1})),
                matrix = register_parameter("matrix", torch::randn({4, 5}).t()),
                half = register_parameter("half", torch::randn({4}, torch::kBFloat16)),
                frozen = register_parameter("frozen", torch::randn({}), /*requires_grad=*/false);
  torch::Tensor count = register_buffer("count", torch::zeros({}, torch::kLong)),
                none = register_buffer("none", torch::randn({0, 2})),
                flag = register_buffer("flag", torch::ones({1}, torch::kBool)),
                columns = register_buffer("columns", torch::randn({4, 3}).t()),
                low = register_buffer("low", torch::randn({}, torch::kHalf));
};
TORCH_MODULE(OddNet);

using Weights = std::vector<std::pair<std::string, at::Tensor>>;

OddNet make(int seed) {
  torch::manual_seed(seed);
  return {};
}

torch::Tensor inputs(int step) { return torch::cos(torch::arange(15, torch::kFloat) * (step + 2)).view({3, 5}); }

Weights copies(const Weights& weights) {
  Weights result;
  for (const auto& [name, value] : weights) result.emplace_back(name, value.detach().clone());
  return result;
}

void expect_close(const Weights& actual, const Weights& expected, const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto& [name, value] = expected[i];
    const double tolerance = value.element_size() == 2 ? 0.02 : 1e-4;
    EXPECT_EQ(actual[i].first, name) << where;
    EXPECT_EQ(actual[i].second.scalar_type(), value.scalar_type()) << where << ", " << name;
    EXPECT_EQ(testing::difference(actual[i].second, value, tolerance, tolerance), "") << where << ", " << name;
  }
}

void expect_bits(const Weights& actual, const Weights& expected, const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_EQ(testing::difference_in_bits(actual[i].second, expected[i].second), "")
        << where << ", " << expected[i].first;
}

constexpr double kMaxNorm = 0.5, kMaxValue = 0.1, kDecay = 0.25;

/// What each step must give, by LibTorch alone.
struct Expected {
  Expected() {
    auto net = make(0);
    torch::optim::Adam adam(net->parameters(), 0.1);
    Weights average;
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      net->forward(inputs(step)).backward();
      if (step == 0) norm = torch::nn::utils::clip_grad_norm_(net->parameters(), kMaxNorm);
      if (step == 1) torch::nn::utils::clip_grad_value_(net->parameters(), kMaxValue);
      adam.step();
      weights.push_back(copies(weights_of(*net)));
      if (step == 0) average = weights.back();
    }
    for (size_t i = 0; i < average.size(); ++i) {
      const auto& now = weights[1][i].second;
      const auto is_parameter = net->named_parameters().contains(average[i].first);
      averages.emplace_back(average[i].first, is_parameter ? average[i].second * kDecay + now * (1 - kDecay) : now);
    }
  }
  double norm = 0;
  std::vector<Weights> weights;  ///< After each step.
  Weights averages;              ///< After two steps.
};

struct Course {
  explicit Course(const char* strategy)
      : accelerator({.strategy = strategy}), net(make(accelerator.process_index())), model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(torch::optim::Adam(net->parameters(), 0.1))) {}
  Weights weights() const { return copies(model.prepared()->managed->full_state(false)); }
  void train(int step, const Expected& expected) {
    accelerator.backward(model(inputs(step)));
    if (step == 0) {
      EXPECT_NEAR(model.grad_norm(), expected.norm, 1e-2);
      EXPECT_NEAR(accelerator.clip_grad_norm_(model, kMaxNorm), expected.norm, 1e-2);
    }
    if (step == 1) accelerator.clip_grad_value_(model, kMaxValue);
    optimizer.step();
    optimizer.zero_grad();
  }

  Accelerator accelerator;
  OddNet net;
  Model<OddNetImpl> model;
  Optimizer optimizer;
};

/// Two steps with an average, and both kinds of saves; what the module has whenever somebody looks is right.
void train_and_save(const char* strategy, const fs::path& folder, const Expected& expected) {
  const std::string where = strategy;
  Course course(strategy);
  expect_bits(course.weights(), copies(weights_of(*make(0))), where + ", as rank 0 had them");
  AveragedModel average(course.model, {.decay = kDecay});
  for (int step = 0; step < 2; ++step) {
    course.train(step, expected);
    average.update();
    expect_close(course.weights(), expected.weights[step], where + ", step " + std::to_string(step));
  }
  AveragedModel again(course.model, {.decay = kDecay});
  again.load_state_dict(average.state_dict());
  expect_close(again.use([&] { return course.weights(); }), expected.averages, where + ", average");
  const auto before = course.weights();
  course.accelerator.summon_full_params(
      course.model, [&] { expect_bits(copies(weights_of(*course.net)), before, where + ", full parameters"); });
  course.accelerator.save_state(folder / "state");
  course.accelerator.save_model(course.model, folder / "model");
  if (course.accelerator.is_main_process()) {
    for (const auto& [name, value] : before)
      EXPECT_EQ(testing::difference_in_bits(load_file(folder / "model").at(name), value), "") << where << ", " << name;
  }
  course.accelerator.wait_for_everyone();
}

/// Takes up each of the saves, and goes on from it.
void load_and_train(const char* strategy, const std::vector<fs::path>& saves, const Expected& expected) {
  Course course(strategy);
  for (const auto& folder : saves) {
    const auto where = folder.string() + " by " + strategy;
    course.accelerator.load_state(folder / "state");
    const auto resumed = course.weights();
    expect_close(resumed, expected.weights[1], where);
    course.train(2, expected);
    expect_close(course.weights(), expected.weights[2], where + ", a step later");
    course.accelerator.load_model(course.model, folder / "model");
    expect_bits(course.weights(), resumed, where + ", weights only");
  }
}

TEST(Shapes, OfEveryKindGoThroughEveryOperation) {
  const testing::InheritedFolder own;
  const Expected expected;
  std::vector<fs::path> saves;
  for (const int world : {1, 2, 3}) {
    const auto folder = own.path() / std::to_string(world);
    for (const char* strategy : kStrategies) saves.push_back(folder / strategy);
    testing::as_ranks(
        world,
        [&] {
          for (const char* strategy : kStrategies) train_and_save(strategy, folder / strategy, expected);
          for (const char* strategy : kStrategies) load_and_train(strategy, saves, expected);
        },
        std::to_string(world));
  }
}

TEST(Shapes, OfEveryKindAreAveragedOverRanks) {
  const Expected expected;
  testing::as_ranks(2, [&] {
    Course course("ddp");
    auto local = course.accelerator.local_sgd(course.model, {.local_sgd_steps = 1});
    for (int step = 0; step < 2; ++step) {
      course.train(step, expected);
      local.step();
    }
    local.finish();
    expect_close(course.weights(), expected.weights[1], "local steps");
  });
}

}  // namespace
}  // namespace muster::shapes
