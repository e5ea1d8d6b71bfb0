#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/order.h"
#include "device/sync_point_filter.h"
#include "muster/fabric.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"
#include "runtime/counted_waits.h"
#include "runtime/device_course.h"

namespace muster {
namespace {

using testing::CourseNet;
using testing::difference_in_bits;
using testing::inputs;

/// In a process of its own, where the accelerator is the simulated one.
void on_device(const std::function<void()>& body) {
  testing::as_device_ranks(1, [&] {
    sim::set_seed(1);
    torch::manual_seed(1);  // LibTorch seeds itself by chance, and gradients of some weights overflow in float16
    const testing::WaitsBySyncPoint counting;
    body();
  });
}

using DeviceWeights = std::vector<at::Tensor>;

DeviceWeights device_weights_of(const CourseNet& net) {
  DeviceWeights all;
  for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().cpu());
  return all;
}

void expect_same_weights(const DeviceWeights& got, const DeviceWeights& wanted, const std::string& what) {
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(difference_in_bits(got[i], wanted[i]), "") << what << ", " << i;
}

template <class Optimizer>
void expect_no_waits(const char* precision, Optimizer optimizer, const CourseNet& net, int reads) {
  SCOPED_TRACE(precision);
  Accelerator accelerator({.mixed_precision = Precision::parse(precision)});
  std::vector<at::Tensor> batches;
  for (int step = 0; step < 6; ++step) batches.push_back(inputs(step, 0).to(accelerator.device()));
  auto [model, prepared] = accelerator.prepare(net, std::move(optimizer));
  std::vector<GradNorm> norms;
  for (int step = 0; step < 6; ++step) {
    if (step == 1) testing::CountedWaits::begin();
    accelerator.backward(model(batches[static_cast<size_t>(step)]).to(at::kFloat).pow(2).mean());
    norms.push_back(accelerator.clip_grad_norm_(model, 0.5));
    prepared.step();
    prepared.zero_grad();
  }
  auto waits = testing::WaitsBySyncPoint::counted();
  EXPECT_EQ(waits[testing::kWaitForFlag], reads);
  EXPECT_EQ(waits.size(), 1U);  // the name above, if it has a count
  const auto stats = sim::stats();
  EXPECT_EQ(stats.all_host_waits(), reads);
  for (const auto& [cause, count] : stats.host_waits) {
    EXPECT_EQ(cause, "event") << count;
  }
  for (const auto& norm : norms) EXPECT_GT(norm, 0);
}

TEST(DeviceSteps, WaitOnlyForTheFlagOfTheStepBefore) {
  on_device([] {
    for (const auto& [precision, reads] : {std::pair{"no", 0}, {"bf16", 0}, {"16-mixed", 5}}) {
      CourseNet one(19), two(19);
      expect_no_waits(precision, torch::optim::AdamW(one->parameters(), 0.01), one, reads);
      // The first step of a momentum is not left out by a flag, but waited for.
      expect_no_waits(precision, torch::optim::SGD(two->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)), two,
                      reads > 0 ? 4 : 0);
      CourseNet three(19);
      const auto rmsprop = torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true).weight_decay(0.1);
      expect_no_waits(precision, torch::optim::RMSprop(three->parameters(), rmsprop), three, reads);
    }
  });
}

/// Whether a step without the point reads what is not there yet.
int noticed(const std::string& point) {
  device::SyncPointFilter::leave_out(point);
  CourseNet net(19);
  Accelerator accelerator({.mixed_precision = "16-mixed"});
  auto [model, sgd] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  accelerator.backward(model(inputs(1, 0).to(accelerator.device())).to(at::kFloat).pow(2).mean());
  sgd.step();
  const auto what_it_read = testing::thrown_id([&, o = sgd] { (void)o.step_was_skipped(); });
  return what_it_read != "no error" || !sim::take_races().empty();
}

TEST(DeviceSteps, NeedTheWaitForTheFlag) {
  on_device([] {
    device::set_sync_filter(nullptr);
    sim::set_on_race(sim::OnRace::collect);
    {
      const device::SyncPointFilter filter;
      device::expect_each_needed({testing::kWaitForFlag, "optimizer: the flag of a step goes to pinned memory"},
                                 {"optimizer: the flag of a step goes to pinned memory"}, noticed);
    }
    sim::set_on_race(sim::OnRace::raise);
  });
}

struct ScaledCourse {
  bool asks = false;  ///< after each step, so that the host always knows
  std::string optimizer = "adamw";
  uint64_t seed = 1;
};

struct ScaledRun {
  DeviceWeights weights;
  std::vector<double> norms;
  std::vector<bool> skipped;
  GradScalerState scaler;
  double rate = 0;
};

/// Losses overflow at first, and the scale grows again later.
constexpr GradScalerOptions kOverflowing{.growth_interval = 3, .init_scale = 1U << 30U};

template <class Inner>
ScaledRun train_scaled(const ScaledCourse& how, CourseNet net, Inner inner) {
  Accelerator accelerator({.grad_scaler = kOverflowing, .mixed_precision = "16-mixed"});
  auto [model, optimizer] = accelerator.prepare(net, *inner);
  auto scheduler = accelerator.prepare(StepLR(*inner, {.gamma = 0.5, .step_size = 2}));
  ScaledRun trained;
  std::vector<GradNorm> norms;
  for (int step = 0; step < 24; ++step) {
    accelerator.backward(model(inputs(step, 0).to(accelerator.device())).to(at::kFloat).pow(2).mean());
    norms.push_back(accelerator.clip_grad_norm_(model, 0.5));
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    if (how.asks) trained.skipped.push_back(optimizer.step_was_skipped());
  }
  trained.scaler = *optimizer.scaler_state();
  trained.rate = scheduler->get_last_lr().at(0);
  trained.weights = device_weights_of(net);
  for (const auto& norm : norms) trained.norms.push_back(norm);
  return trained;
}

ScaledRun train_scaled(const ScaledCourse& how) {
  sim::set_seed(how.seed);
  torch::manual_seed(3);
  CourseNet net(19);
  if (how.optimizer == "sgd")
    return train_scaled(
        how, net, std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  const auto rmsprop = torch::optim::RMSpropOptions(0.05).momentum(0.5).centered(true).weight_decay(0.1);
  if (how.optimizer == "rmsprop")
    return train_scaled(how, net, std::make_shared<torch::optim::RMSprop>(net->parameters(), rmsprop));
  return train_scaled(how, net, std::make_shared<torch::optim::AdamW>(net->parameters(), 0.05));
}

TEST(DeviceSteps, ThatAreLeftOutAreAsIfTheHostHadKnown) {
  on_device([] {
    for (const char* optimizer : {"adamw", "sgd", "rmsprop"}) {
      const auto asked = train_scaled({.asks = true, .optimizer = optimizer, .seed = 0});
      const auto skips = std::count(asked.skipped.begin(), asked.skipped.end(), true);
      EXPECT_GT(skips, 3);
      EXPECT_FALSE(asked.skipped.back());
      EXPECT_GT(asked.rate, 0);
      EXPECT_LT(asked.rate, 0.05);
      for (uint64_t seed = 0; seed < 5; ++seed) {
        const auto trained = train_scaled({.optimizer = optimizer, .seed = seed});
        const auto what = "seed " + std::to_string(seed) + ", " + optimizer;
        expect_same_weights(trained.weights, asked.weights, what);
        EXPECT_EQ(trained.scaler, asked.scaler) << what;
        EXPECT_EQ(trained.rate, asked.rate) << what;
        for (size_t i = 0; i < trained.norms.size(); ++i) {
          if (asked.skipped[i]) continue;
          EXPECT_EQ(trained.norms[i], asked.norms[i]) << what;
        }
      }
    }
  });
}

TEST(DeviceSteps, WithTwoOptimizersUseTheSmallerScale) {
  on_device([] {
    Accelerator accelerator({.grad_scaler = {.init_scale = 1024}, .mixed_precision = "16-mixed"});
    CourseNet one(19), two(19);
    auto [first, second, sgd, adam] = accelerator.prepare(one, two, torch::optim::SGD(one->parameters(), 0.1),
                                                          torch::optim::AdamW(two->parameters(), 0.01));
    adam.load_scaler_state({.scale = 64});
    const auto before = device_weights_of(two);
    for (int step = 0; step < 2; ++step) {
      const auto x = inputs(step, 0).to(accelerator.device());
      accelerator.backward((first(x) + second(x)).to(at::kFloat).pow(2).mean());
      accelerator.unscale_gradients();
      EXPECT_LT(one->parameters()[0].grad().abs().max().item<float>(), 10) << "scaled by one, and unscaled by another";
      sgd.step();
      adam.step();
      sgd.zero_grad();
      adam.zero_grad();
    }
    EXPECT_EQ(sgd.scaler_state()->scale, 1024);
    EXPECT_EQ(adam.scaler_state()->scale, 64);
    EXPECT_EQ(sgd.scaler_state()->growth_tracker, 0) << "finite gradients of a smaller scale say nothing";
    EXPECT_EQ(adam.scaler_state()->growth_tracker, 2);
    EXPECT_NE(difference_in_bits(device_weights_of(two)[0], before[0]), "");
  });
}

/// One step with gradients that are not finite, after a good one.
template <class Clip>
void expect_bad_step(const char* error, Clip clip) {
  Fabric fabric;
  CourseNet net(19);
  auto [model, adam] = fabric.setup(net, torch::optim::AdamW(net->parameters(), 0.05));
  DeviceWeights before;
  auto step = [&, m = model, o = adam](bool bad) mutable {
    fabric.backward(m(inputs(1, 0).to(fabric.device())).pow(2).mean());
    if (bad) net->parameters()[1].mutable_grad().fill_(NAN);
    clip(fabric, m, o);
    const auto message = testing::thrown_id([&] { o.step(); });
    o.zero_grad();
    return message;
  };
  EXPECT_EQ(step(false), "no error");
  before = device_weights_of(net);
  EXPECT_EQ(step(true), "no error");
  expect_same_weights(device_weights_of(net), before, "the step changed something");
  EXPECT_EQ(step(false), error) << "in the next step";
  EXPECT_EQ(adam.step_was_skipped(), std::string(error) != "no error");  // the last one that came to an end
  if (std::string(error) != "no error")
    expect_same_weights(device_weights_of(net), before, "the step that threw changed something");
  EXPECT_EQ(step(false), "no error");
  EXPECT_NE(difference_in_bits(device_weights_of(net)[0], before[0]), "");
}

TEST(DeviceSteps, WithANormThatIsNotFiniteAreReportedByTheNext) {
  on_device([] {
    expect_bad_step("MU175", [](Fabric& fabric, auto& model, auto& optimizer) {
      fabric.clip_gradients(model, optimizer, {.max_norm = 1.0});
    });
  });
}

TEST(DeviceSteps, WithANormThatIsNotFiniteAreSkipped) {
  on_device([] {
    expect_bad_step("no error", [](Fabric& fabric, auto& model, auto&) {
      fabric.clip_grad_norm_(model, 1.0, {.skip_if_nonfinite = true});
    });
  });
}

TEST(DeviceSteps, OfOthersParametersAreReportedAtOnce) {
  on_device([] {
    Accelerator accelerator;
    at::Tensor parameter = torch::ones({3}, accelerator.device()).requires_grad_();
    parameter.mutable_grad() = torch::full({3}, INFINITY, accelerator.device());
    EXPECT_EQ(testing::thrown_id([&] {
                accelerator.clip_grad_norm_(std::vector<at::Tensor>{parameter}, 1.0, {.error_if_nonfinite = true});
              }),
              "MU175");
  });
}

}  // namespace
}  // namespace muster
