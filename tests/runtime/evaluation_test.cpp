#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/base/error.h"
#include "muster/strategy/options.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"

// Evaluation after training: who may evaluate alone, and what every rank sees.
namespace muster::evaluated {
namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : first(register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, width, 3).padding(1)))),
        second(register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, width, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(width))),
        last(register_module("last", torch::nn::BatchNorm2d(width))) {}
  torch::Tensor forward(torch::Tensor x) { return torch::relu(x + last(second(torch::relu(norm(first(x)))))); }
  torch::nn::Conv2d first, second;
  torch::nn::BatchNorm2d norm, last;
};
TORCH_MODULE(Block);

/// A residual network with batch norms, and a buffer of another dtype that counts forwards.
struct ResNetImpl : torch::nn::Module {
  ResNetImpl() { register_buffer("calls", calls); }
  torch::Tensor forward(torch::Tensor x) {
    if (is_training()) calls += 1;
    return head(blocks->forward(in(x)).mean({2, 3}));
  }
  torch::Tensor calls = torch::zeros({1}, torch::kInt);
  torch::nn::Conv2d in{register_module("in", torch::nn::Conv2d(3, 8, 1))};
  torch::nn::Sequential blocks{register_module("blocks", torch::nn::Sequential(Block(8), Block(8)))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(8, 4))};
};
TORCH_MODULE(ResNet);

torch::Tensor images(int step, int rank) {
  return torch::cos(torch::arange(4 * 3 * 25, torch::kFloat) * (0.3 + step) + 7 * rank).view({4, 3, 5, 5}) * (1 + rank);
}

ResNet make() {
  torch::manual_seed(5);
  return {};
}

/// A course of training under one strategy.
struct Course {
  explicit Course(const Strategy& strategy, int accumulation = 1)
      : accelerator({.gradient_accumulation_steps = accumulation, .strategy = strategy}), net(make()),
        model(accelerator.prepare(net)),
        optimizer(
            accelerator.prepare(torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)))) {}
  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(images(step, accelerator.process_index())).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  torch::Tensor evaluate() {
    const torch::NoGradGuard no_grad;
    net->eval();
    auto answer = model(images(9, 0));
    net->train();
    return answer.detach().clone();
  }
  void expect_equal_buffers() {
    for (const auto& entry : net->named_buffers()) {
      auto of_main = entry.value().clone();
      accelerator.group().broadcast(of_main, 0);
      EXPECT_EQ(testing::difference_in_bits(entry.value(), of_main), "") << entry.key();
    }
  }

  Accelerator accelerator;
  ResNet net;
  Model<ResNetImpl> model;
  Optimizer optimizer;
};

/// The other ranks are in a barrier meanwhile: whatever the forward communicated would meet it.
void expect_quiet_evaluation_on_the_main_process() {
  for (const char* strategy : {"ddp", "zero1", "zero2"}) {
    SCOPED_TRACE(strategy);
    Course course(strategy);
    for (int round = 0; round < 2; ++round) {
      course.train(2);
      if (course.accelerator.is_main_process()) {
        course.evaluate();
        const torch::NoGradGuard no_grad;
        course.model(images(8, 0));  // in training mode, too
        course.evaluate();
      }
      course.accelerator.wait_for_everyone();
    }
    course.train(1);
    course.expect_equal_buffers();
  }
}

TEST(Evaluation, OnTheMainProcessAloneCommunicatesNothing) {
  testing::as_ranks(2, expect_quiet_evaluation_on_the_main_process, "2");
  testing::as_ranks(3, expect_quiet_evaluation_on_the_main_process, "3");
}

/// Buffers are those of the main process after each step, and so all ranks evaluate alike, under whatever strategy.
void expect_one_rule_of_buffers() {
  for (const int accumulation : {1, 2}) {
    std::map<std::string, torch::Tensor> answers;
    for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
      SCOPED_TRACE(std::string(strategy) + ", windows of " + std::to_string(accumulation));
      Course course(strategy, accumulation);
      course.train(4);
      course.expect_equal_buffers();
      EXPECT_EQ(course.net->calls.item<int>(), 4);
      answers[strategy] = course.evaluate();
      auto of_main = answers[strategy].clone();
      course.accelerator.group().broadcast(of_main, 0);
      EXPECT_EQ(testing::difference_in_bits(answers[strategy], of_main), "");
      EXPECT_EQ(testing::difference(answers[strategy], answers["ddp"], 1e-6, 1e-6), "");
    }
  }
}

TEST(Evaluation, IsTheSameUnderEveryStrategy) {
  testing::as_ranks(2, expect_one_rule_of_buffers, "2");
  testing::as_ranks(3, expect_one_rule_of_buffers, "3");
}

/// What the ranks other than the main one do while it evaluates alone, where each rank gathers.
void expect_named_failure(const std::function<void(Course&)>& others, const std::string& their_part) {
  Course course(FSDP{.one_copy_per_host = false});
  course.train(1);
  const auto said = testing::thrown([&] {
    if (course.accelerator.is_main_process()) course.evaluate();
    else others(course);
    course.accelerator.wait_for_everyone();
  });
  for (const std::string& part : {std::string("MU050"), std::string("for evaluation, unit 'root'"), their_part,
                                  std::string("summon_full_params")})
    EXPECT_NE(said.find(part), std::string::npos) << part << " is not in: " << said;
}

void expect_named_failures() {
  expect_named_failure([](Course& course) { course.accelerator.wait_for_everyone(); }, "barrier");
  expect_named_failure([](Course& course) { course.train(1); }, "for training, unit 'root'");
  expect_named_failure([](Course& course) { course.accelerator.gather(torch::ones({2})); }, "all_gather");
}

/// Ranks that have one copy of the parameters in common find it out in the next step.
void expect_named_failure_of_next_step() {
  Course course("fsdp");
  course.train(1);
  if (course.accelerator.is_main_process()) course.evaluate();
  const auto said = testing::thrown([&] { course.train(1); });
  for (const char* part : {"MU050", "used or updated units of a sharded model in different orders",
                           "for the gradients of", "summon_full_params"})
    EXPECT_NE(said.find(part), std::string::npos) << part << " is not in: " << said;
}

TEST(Evaluation, OnTheMainProcessAloneFailsInTheNextStepWhereRanksHaveOneCopy) {  // MU050
  testing::as_ranks(2, expect_named_failure_of_next_step, "2");
  testing::as_ranks(3, expect_named_failure_of_next_step, "3");
}

TEST(Evaluation, OnTheMainProcessAloneFailsByNameWhereParametersAreCut) {  // MU050
  testing::as_ranks(2, expect_named_failures, "2");
  testing::as_ranks(3, expect_named_failures, "3");
}

/// The way out that the message names.
TEST(Evaluation, OnTheMainProcessAloneWorksOnSummonedValues) {
  testing::as_ranks(2, [] {
    Course course("fsdp");
    course.train(2);
    const auto together = course.evaluate();
    course.accelerator.summon_full_params(
        course.model,
        [&] {
          if (!course.accelerator.is_main_process()) return;
          const torch::NoGradGuard no_grad;
          course.net->eval();
          EXPECT_EQ(testing::difference_in_bits(course.net->forward(images(9, 0)), together), "");
          course.net->train();
        },
        {.rank0_only = true, .writeback = false});
    course.train(1);
  });
}

/// As scripts for Accelerate had it before gather_for_metrics: what ranks repeat to be equal comes last, and is cut
/// off.
void expect_the_older_loop() {
  constexpr int64_t kSamples = 11;
  std::vector<std::tuple<torch::Tensor, int64_t>> data;
  for (int64_t i = 0; i < kSamples; ++i) data.emplace_back(images(static_cast<int>(i), 0)[0], i);
  for (const char* strategy : {"ddp", "zero2", "fsdp"}) {
    SCOPED_TRACE(strategy);
    Course course(strategy);
    course.train(2);
    auto loader = course.accelerator.prepare(DataLoader(data, {.batch_size = 2}));
    const torch::NoGradGuard no_grad;
    course.net->eval();
    std::vector<torch::Tensor> guesses, labels;
    for (auto& [x, label] : loader) {
      guesses.push_back(course.accelerator.gather(course.model(x)));
      labels.push_back(course.accelerator.gather(label));
    }
    const auto guess = torch::cat(guesses).narrow(0, 0, kSamples), label = torch::cat(labels).narrow(0, 0, kSamples);
    EXPECT_TRUE(torch::equal(label, torch::arange(kSamples))) << label;
    for (int64_t i = 0; i < kSamples; ++i) {
      const auto alone = course.model(std::get<0>(data[static_cast<size_t>(i)]).unsqueeze(0));
      EXPECT_EQ(testing::difference(guess[i], alone[0], 1e-5, 1e-6), "") << i;
    }
  }
}

TEST(Evaluation, TheOlderLoopOfAccelerateSeesEverySampleOnce) {
  testing::as_ranks(2, expect_the_older_loop, "2");
  testing::as_ranks(3, expect_the_older_loop, "3");
}

}  // namespace
}  // namespace muster::evaluated
