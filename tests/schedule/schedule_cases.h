#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "muster/schedule/schedulers.h"

namespace muster::schedule::testing {

/// One schedule on one optimizer; schedules_parity.py has the same by the same name.
struct ScheduleCase {
  std::string name;
  std::string optimizer;
  Schedule schedule;
};

inline constexpr int kScheduleSteps = 300;

/// Two groups, with rates 0.1 and 0.04.
inline std::unique_ptr<torch::optim::Optimizer> scheduled_optimizer(const std::string& kind) {
  const auto make = [](auto defaults, auto tag) -> std::unique_ptr<torch::optim::Optimizer> {
    using Kind = typename decltype(tag)::type;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const double lr : {0.1, 0.04}) {
      auto options = defaults;
      options.lr(lr);
      groups.emplace_back(std::vector<at::Tensor>{torch::zeros({2}, torch::requires_grad())},
                          std::make_unique<decltype(defaults)>(options));
    }
    return std::make_unique<Kind>(std::move(groups), defaults);
  };
  if (kind == "adam") return make(torch::optim::AdamOptions(), std::type_identity<torch::optim::Adam>());
  if (kind == "adamw") return make(torch::optim::AdamWOptions(), std::type_identity<torch::optim::AdamW>());
  if (kind == "rmsprop") return make(torch::optim::RMSpropOptions(), std::type_identity<torch::optim::RMSprop>());
  return make(torch::optim::SGDOptions(0.5).momentum(0.9), std::type_identity<torch::optim::SGD>());
}

/// The momentum, or first beta, of a group.
inline double momentum_of(const torch::optim::OptimizerOptions& options) {
  using namespace torch::optim;
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return sgd->momentum();
  if (const auto* rmsprop = dynamic_cast<const RMSpropOptions*>(&options)) return rmsprop->momentum();
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) return std::get<0>(adam->betas());
  return std::get<0>(dynamic_cast<const AdamWOptions&>(options).betas());
}

inline std::vector<double> rates_and_momenta(const torch::optim::Optimizer& optimizer) {
  std::vector<double> values;
  for (const auto& group : optimizer.param_groups()) {
    values.push_back(group.options().get_lr());
    values.push_back(momentum_of(group.options()));
  }
  return values;
}

/// Gets better, then stays about where it is.
inline double plateau_metric(int step) { return 1.0 / (1.0 + 0.05 * std::min(step, 60)) + 0.01 * (step * 37 % 11); }

inline std::vector<std::pair<std::string, ReduceLROnPlateauOptions>> plateau_cases() {
  return {
      {"plateau", {.patience = 5}},
      {"plateau cooldown", {.cooldown = 7, .factor = 0.5, .min_lr = {0.01, 0.001}, .patience = 3, .threshold = 0.01}},
      {"plateau max abs",
       {.factor = 0.9,
        .mode = PlateauMode::max,
        .patience = 4,
        .threshold = 0.02,
        .threshold_mode = ThresholdMode::abs}},
      {"plateau min abs", {.factor = 0.7, .patience = 2, .threshold = 0.001, .threshold_mode = ThresholdMode::abs}},
      {"plateau max rel", {.factor = 0.9, .mode = PlateauMode::max, .patience = 8}}};
}

inline std::vector<ScheduleCase> composed_cases() {
  const auto decay = [](int64_t n) { return std::pow(0.99, n); };
  return {
      {"sequential linear cosine", "adamw",
       SequentialLROptions{
           {20}, {LinearLROptions{.start_factor = 0.1, .total_iters = 20}, CosineAnnealingLROptions{.T_max = 280}}}},
      {"sequential three", "sgd",
       SequentialLROptions{{30, 100},
                           {ConstantLROptions{.factor = 0.5, .total_iters = 10}, ExponentialLROptions{.gamma = 0.99},
                            StepLROptions{.gamma = 0.7, .step_size = 40}}}},
      {"sequential others", "sgd",
       SequentialLROptions{
           {40, 80, 120, 200},
           {LambdaLROptions{decay}, PolynomialLROptions{.power = 2, .total_iters = 40},
            MultiStepLROptions{.milestones = {5, 9}}, CosineAnnealingWarmRestartsOptions{.T_0 = 10, .T_mult = 2},
            MultiplicativeLROptions{[](int64_t) { return 0.98; }}}}},
      {"sequential at once", "sgd",
       SequentialLROptions{{0}, {StepLROptions{.step_size = 3}, ExponentialLROptions{.gamma = 0.9}}}},
      {"sequential one cycle", "adam",
       SequentialLROptions{{50},
                           {LinearLROptions{.total_iters = 50}, OneCycleLROptions{.max_lr = 0.3, .total_steps = 260}}}},
      {"chained", "sgd",
       ChainedSchedulerOptions{{ConstantLROptions{.factor = 0.1, .total_iters = 20},
                                ExponentialLROptions{.gamma = 0.99},
                                MultiStepLROptions{.gamma = 0.5, .milestones = {60, 61, 150}}}}},
      {"chained linear", "adam",
       ChainedSchedulerOptions{{LinearLROptions{.total_iters = 9}, StepLROptions{.gamma = 0.9, .step_size = 11}}}},
      {"chained cosine", "sgd",
       ChainedSchedulerOptions{{CosineAnnealingLROptions{.T_max = 100}, ExponentialLROptions{.gamma = 0.999}}}},
      {"chained sequential", "sgd",
       ChainedSchedulerOptions{
           {SequentialLROptions{{10}, {LinearLROptions{.total_iters = 10}, ExponentialLROptions{.gamma = 0.999}}},
            StepLROptions{.gamma = 0.5, .step_size = 100}}}},
  };
}

inline std::vector<ScheduleCase> cyclic_cases() {
  return {
      {"cyclic", "sgd", CyclicLROptions{.base_lr = 0.01, .max_lr = 0.1, .step_size_up = 20}},
      {"cyclic uneven", "adam",
       CyclicLROptions{.base_lr = {0.01, 0.02},
                       .base_momentum = {0.7, 0.75},
                       .max_lr = {0.1, 0.3},
                       .max_momentum = {0.9, 0.99},
                       .step_size_down = 33,
                       .step_size_up = 17}},
      {"cyclic triangular2", "rmsprop",
       CyclicLROptions{.base_lr = 0.001, .max_lr = 0.1, .mode = CyclicMode::triangular2, .step_size_up = 13}},
      {"cyclic exp_range", "adamw",
       CyclicLROptions{
           .base_lr = 0.001, .gamma = 0.99, .max_lr = 0.1, .mode = CyclicMode::exp_range, .step_size_up = 25}},
      {"cyclic function", "sgd",
       CyclicLROptions{.base_lr = 0.001,
                       .cycle_momentum = false,
                       .max_lr = 0.1,
                       .scale_fn = [](double x) { return 1 / std::pow(1.1, x); },
                       .step_size_up = 9}},
      {"cyclic function of iterations", "sgd",
       CyclicLROptions{.base_lr = 0.001,
                       .max_lr = 0.1,
                       .scale_fn = [](double x) { return 1 / (1 + 0.01 * x); },
                       .scale_mode = CyclicScaleMode::iterations,
                       .step_size_up = 9}},
      {"one cycle", "sgd", OneCycleLROptions{.max_lr = 0.2, .total_steps = 301}},
      {"one cycle linear", "adam",
       OneCycleLROptions{
           .anneal_strategy = AnnealStrategy::linear, .epochs = 7, .max_lr = {0.2, 0.4}, .steps_per_epoch = 43}},
      {"one cycle three phases", "adamw",
       OneCycleLROptions{.base_momentum = {0.8, 0.7},
                         .div_factor = 10,
                         .final_div_factor = 100,
                         .max_lr = 0.2,
                         .pct_start = 0.4,
                         .three_phase = true,
                         .total_steps = 301}},
      {"one cycle without momentum", "rmsprop",
       OneCycleLROptions{.cycle_momentum = false, .max_lr = 0.2, .pct_start = 0.0, .total_steps = 310}},
  };
}

inline std::vector<ScheduleCase> schedule_cases() {
  std::vector<ScheduleCase> all{
      {"lambda", "sgd", LambdaLROptions{[](int64_t n) { return std::pow(0.95, n); }}},
      {"lambda each", "adam",
       LambdaLROptions{
           {[](int64_t n) { return static_cast<double>(n / 30); }, [](int64_t n) { return 1 / (1 + 0.1 * n); }}}},
      {"multiplicative", "sgd", MultiplicativeLROptions{[](int64_t n) { return n % 7 == 0 ? 1.03 : 0.99; }}},
      {"step", "sgd", StepLROptions{.step_size = 30}},
      {"step gamma", "adamw", StepLROptions{.gamma = 0.97, .step_size = 7}},
      {"multi step", "sgd", MultiStepLROptions{.gamma = 0.3, .milestones = {80, 30, 30, 200}}},
      {"constant", "sgd", ConstantLROptions{}},
      {"constant long", "sgd", ConstantLROptions{.factor = 0.7, .total_iters = 120}},
      {"linear", "adam", LinearLROptions{}},
      {"linear down", "sgd", LinearLROptions{.end_factor = 0.1, .start_factor = 1.0, .total_iters = 250}},
      {"exponential", "sgd", ExponentialLROptions{.gamma = 0.98}},
      {"polynomial", "sgd", PolynomialLROptions{.power = 1.7, .total_iters = 222}},
      {"polynomial short", "sgd", PolynomialLROptions{}},
      {"cosine", "sgd", CosineAnnealingLROptions{.T_max = 300}},
      {"cosine waves", "adam", CosineAnnealingLROptions{.eta_min = 0.001, .T_max = 17}},
      {"restarts", "sgd", CosineAnnealingWarmRestartsOptions{.T_0 = 23}},
      {"restarts longer", "sgd", CosineAnnealingWarmRestartsOptions{.eta_min = 0.002, .T_0 = 10, .T_mult = 3}},
      {"warmup cosine", "adamw", WarmupLROptions{.total_steps = 280, .warmup_steps = 25}},
      {"warmup linear", "adamw", WarmupLROptions{.decay = WarmupDecay::linear, .total_steps = 280, .warmup_steps = 25}},
      {"warmup constant", "adamw", WarmupLROptions{.decay = WarmupDecay::constant, .warmup_steps = 25}},
      {"warmup cosine to a tenth", "adamw", WarmupLROptions{.end_factor = 0.1, .total_steps = 280, .warmup_steps = 0}},
  };
  for (auto& more : {cyclic_cases(), composed_cases()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace muster::schedule::testing
