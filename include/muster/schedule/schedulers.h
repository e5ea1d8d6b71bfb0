#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "muster/schedule/composed_schedulers.h"
#include "muster/schedule/cyclic_schedulers.h"
#include "muster/schedule/options.h"
#include "muster/schedule/scheduler.h"

// The schedulers of Python's torch.optim.lr_scheduler, with its formulas; n is last_epoch(), "base" the initial rate.
// Each takes any optimizer of LibTorch. All constructors throw ConfigError (MU135) for invalid options, including a
// list of values whose length is not the number of parameter groups.

namespace muster {

/// base * lr_lambda(n).
class LambdaLR final : public LRScheduler {
 public:
  LambdaLR(OptimizerRates optimizer, const LambdaLROptions& options);

 private:
  double next_lr(size_t group, double lr) override;
  std::vector<std::function<double(int64_t)>> lambdas_;
};

/// Multiplies the rate by lr_lambda(n) at each step.
class MultiplicativeLR final : public LRScheduler {
 public:
  MultiplicativeLR(OptimizerRates optimizer, const MultiplicativeLROptions& options);

 private:
  double next_lr(size_t group, double lr) override;
  std::vector<std::function<double(int64_t)>> lambdas_;
};

/// Multiplies the rate by gamma every step_size steps.
class StepLR final : public LRScheduler {
 public:
  StepLR(OptimizerRates optimizer, StepLROptions options);

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  StepLROptions options_;
};

/// Multiplies the rate by gamma at each milestone.
class MultiStepLR final : public LRScheduler {
 public:
  MultiStepLR(OptimizerRates optimizer, MultiStepLROptions options);

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  MultiStepLROptions options_;
};

/// Multiplies the rate by factor until step total_iters.
class ConstantLR final : public LRScheduler {
 public:
  explicit ConstantLR(OptimizerRates optimizer, ConstantLROptions options = {});

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  ConstantLROptions options_;
};

/// Multiplies the rate by a factor that goes from start_factor to end_factor over total_iters steps.
class LinearLR final : public LRScheduler {
 public:
  explicit LinearLR(OptimizerRates optimizer, LinearLROptions options = {});

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  LinearLROptions options_;
};

/// Multiplies the rate by gamma at each step.
class ExponentialLR final : public LRScheduler {
 public:
  ExponentialLR(OptimizerRates optimizer, ExponentialLROptions options);

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  ExponentialLROptions options_;
};

/// Multiplies the rate by (1 - n / total_iters) ^ power.
class PolynomialLR final : public LRScheduler {
 public:
  explicit PolynomialLR(OptimizerRates optimizer, PolynomialLROptions options = {});
  std::optional<int64_t> total_steps() const override { return options_.total_iters; }

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  PolynomialLROptions options_;
};

/// Goes from base to eta_min along half a cosine wave of T_max steps, and back (Loshchilov and Hutter 2016, without
/// restarts).
class CosineAnnealingLR final : public LRScheduler {
 public:
  CosineAnnealingLR(OptimizerRates optimizer, CosineAnnealingLROptions options);
  std::optional<int64_t> total_steps() const override { return options_.T_max; }

 private:
  double next_lr(size_t group, double lr) override;
  double closed_form_lr(size_t group, double lr) override;
  CosineAnnealingLROptions options_;
};

/// Goes from base to eta_min along half a cosine wave of T_0 steps, then again over T_mult times as many steps, and so
/// on (Loshchilov and Hutter 2016).
class CosineAnnealingWarmRestarts final : public LRScheduler {
 public:
  CosineAnnealingWarmRestarts(OptimizerRates optimizer, CosineAnnealingWarmRestartsOptions options);
  SchedulerState state_dict() const override;

 private:
  double next_lr(size_t group, double lr) override;
  void advance() override;
  void load(const SchedulerState& state) override;
  CosineAnnealingWarmRestartsOptions options_;
  int64_t T_cur_ = 0, T_i_ = 0;
};

/// Grows linearly from 0 to base over warmup_steps steps. Then stays constant, or goes to end_factor * base at
/// total_steps along a line or half a cosine wave and stays there. Equals a LambdaLR with the factors that Hugging Face
/// Transformers uses.
class WarmupLR final : public LRScheduler {
 public:
  WarmupLR(OptimizerRates optimizer, WarmupLROptions options);
  std::optional<int64_t> total_steps() const override;

 private:
  double next_lr(size_t group, double lr) override;
  WarmupLROptions options_;
};

}  // namespace muster
