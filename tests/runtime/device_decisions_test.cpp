#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "muster/accelerator.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/device_course.h"
#include "runtime/temporary_folder.h"

namespace muster {
namespace {

using testing::CourseNet, testing::inputs;
using Numbers = std::vector<double>;

constexpr GradScalerOptions kSmallScale{.growth_interval = 2, .init_scale = 1024};

/// What a program says on the CPU it says on the device, too.
void expect_as_on_the_cpu(const std::function<Numbers(bool cpu)>& program) {
  testing::as_device_ranks(1, [&] {
    sim::set_seed(1);
    const auto wanted = program(true);
    EXPECT_FALSE(wanted.empty());
    EXPECT_EQ(program(false), wanted);
  });
}

CourseNet seeded_net() {
  torch::manual_seed(3);
  return CourseNet(19);
}

at::Tensor loss_of(Accelerator& accelerator, Model<testing::CourseNetImpl>& model, int step) {
  return model(inputs(step, 0).to(accelerator.device())).to(at::kFloat).pow(2).mean();
}

template <class Scheduler, class Step>
Numbers rates_beside(bool cpu, const Scheduler& other, Step step) {
  Accelerator accelerator({.cpu = cpu, .grad_scaler = kSmallScale, .mixed_precision = "16-mixed"});
  const auto net = seeded_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  ExponentialLR halves(sgd, {.gamma = 0.5});
  auto [model, optimizer, first, second] = accelerator.prepare(net, sgd, halves, other(sgd));
  Numbers rates;
  for (int i = 0; i < 4; ++i) {
    accelerator.backward(loss_of(accelerator, model, i));
    optimizer.step();
    first.step();
    step(second);
    optimizer.zero_grad();
    rates.push_back(optimizer.param_groups()[0].options().get_lr());
  }
  return rates;
}

TEST(DeviceDecisions, SchedulersStepInTheOrderOfTheProgram) {
  expect_as_on_the_cpu([](bool cpu) {
    return rates_beside(
        cpu, [](auto& sgd) { return ReduceLROnPlateau(sgd, {.factor = 0.5, .min_lr = 0.03, .patience = 0}); },
        [](auto& plateau) { plateau.step(1.0); });
  });
  expect_as_on_the_cpu([](bool cpu) {
    return rates_beside(
        cpu,
        [](auto& sgd) { return LambdaLR(sgd, {.lr_lambda = [](int64_t epoch) { return epoch < 2 ? 1.0 : 0.3; }}); },
        [](auto& free) {
          free.set_step_with_optimizer(false);
          free.step();
        });
  });
}

/// How often a bad gradient of the first parameter in step 1 is reported, and the weights after some steps.
Numbers reports(bool cpu, bool own_skip) {
  Accelerator accelerator({.cpu = cpu});
  const auto net = seeded_net();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto parameters = net->parameters();
  double errors = 0;
  for (int i = 0; i < 4; ++i) {
    accelerator.backward(loss_of(accelerator, model, i));
    if (i == 1) parameters[0].mutable_grad().fill_(NAN);
    errors += testing::thrown_id([&] {
                for (const auto& parameter : {parameters[0], parameters[1]}) {
                  const double norm = accelerator.clip_grad_norm_(std::vector<at::Tensor>{parameter}, 1.0,
                                                                  {.error_if_nonfinite = true});
                  if (own_skip && !std::isfinite(norm)) return optimizer.zero_grad();
                }
                optimizer.step();
              }) == "MU175";
    errors += testing::thrown_id([&] { optimizer.zero_grad(); }) == "MU175";
  }
  Numbers result{errors};
  for (const auto& parameter : parameters) result.push_back(parameter.sum().item<double>());
  return result;
}

TEST(DeviceDecisions, ABadNormIsReportedOnceWhateverFollows) {  // MU175
  testing::as_device_ranks(1, [] {
    sim::set_seed(1);
    EXPECT_EQ(reports(false, false)[0], 1);
    EXPECT_EQ(reports(true, false)[0], 1);
  });
}

TEST(DeviceDecisions, AFlagGoesWithItsGradients) {
  expect_as_on_the_cpu([](bool cpu) { return reports(cpu, true); });
}

TEST(DeviceDecisions, AFlagGoesWithGradientsThatALoadReplaces) {
  expect_as_on_the_cpu([](bool cpu) {
    const testing::TemporaryFolder folder;
    Accelerator accelerator({.cpu = cpu});
    const auto net = seeded_net();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    auto clipped = [&, m = model](bool bad) mutable {
      accelerator.backward(loss_of(accelerator, m, 1));
      if (bad) net->parameters()[0].mutable_grad().fill_(NAN);
      accelerator.clip_grad_norm_(m, 1.0, {.skip_if_nonfinite = true});
    };
    accelerator.save_state(folder.path() / "state", {.durability = Durability::none});
    clipped(true);
    accelerator.load_state(folder.path() / "state");
    clipped(false);
    optimizer.step();
    EXPECT_FALSE(optimizer.step_was_skipped());
    Numbers sums;
    for (const auto& parameter : net->parameters()) sums.push_back(parameter.sum().item<double>());
    return sums;
  });
}

TEST(DeviceDecisions, AnOverflowGoesWithGradientsThatAProgramGivesUp) {
  expect_as_on_the_cpu([](bool cpu) {
    Accelerator accelerator({.cpu = cpu, .grad_scaler = kSmallScale, .mixed_precision = "16-mixed"});
    const auto net = seeded_net();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    Numbers numbers;
    for (int i = 0; i < 6; ++i) {
      accelerator.backward(loss_of(accelerator, model, i));
      if (i == 1 || i == 2) net->parameters()[0].mutable_grad().fill_(INFINITY);
      const double norm = accelerator.clip_grad_norm_(model, 1.0);
      if (std::isfinite(norm)) optimizer.step();
      optimizer.zero_grad();
      numbers.push_back(optimizer.scaler_state()->scale);
      EXPECT_FALSE(optimizer.step_was_skipped()) << i;
    }
    EXPECT_EQ(numbers[2], kSmallScale.init_scale / 4);
    return numbers;
  });
}

TEST(DeviceDecisions, AnOverflowIsSavedBetweenClippingAndTheStep) {
  expect_as_on_the_cpu([](bool cpu) {
    const testing::TemporaryFolder folder;
    Numbers numbers;
    for (const bool resumed : {false, true}) {
      Accelerator accelerator({.cpu = cpu, .grad_scaler = kSmallScale, .mixed_precision = "16-mixed"});
      const auto net = seeded_net();
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      if (resumed) {
        accelerator.load_state(folder.path() / "state");
      } else {
        accelerator.backward(loss_of(accelerator, model, 0));
        net->parameters()[0].mutable_grad().fill_(INFINITY);
        accelerator.clip_grad_value_(model, 1.0);
        accelerator.save_state(folder.path() / "state", {.durability = Durability::none});
      }
      optimizer.step();
      EXPECT_TRUE(optimizer.step_was_skipped());
      numbers.push_back(optimizer.scaler_state()->scale);
    }
    return numbers;
  });
}

TEST(DeviceDecisions, StateReadThroughTheHandleIsThatOfTheLastStep) {
  expect_as_on_the_cpu([](bool cpu) {
    Accelerator accelerator({.cpu = cpu, .grad_scaler = kSmallScale, .mixed_precision = "16-mixed"});
    const auto net = seeded_net();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    for (int i = 0; i < 4; ++i) {
      auto loss = loss_of(accelerator, model, i);
      accelerator.backward(i == 3 ? loss * INFINITY : loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    Numbers steps;
    for (const auto& parameter : net->parameters())
      if (parameter.requires_grad())
        steps.push_back(static_cast<double>(
            static_cast<torch::optim::AdamWParamState&>(*optimizer->state().at(parameter.unsafeGetTensorImpl()))
                .step()));
    return steps;
  });
}

TEST(DeviceDecisions, ANormIsLoggedAsANumber) {
  testing::as_device_ranks(1, [] {
    const GradNorm norm(torch::full({}, 2.5, sim::device(0)));
    EXPECT_EQ(std::get<double>(LoggedValue("norm", norm).read().data), 2.5);
    EXPECT_EQ(norm.item<float>(), 2.5F);
  });
}

}  // namespace
}  // namespace muster
