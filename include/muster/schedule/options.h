#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "muster/optim/options.h"

namespace muster {

// The options of learning-rate schedules, with the names and defaults of Python's torch.optim.lr_scheduler. An option
// that has no default in Python has an invalid value here, which the scheduler refuses. schedulers.h describes the
// schedulers.

class LRScheduler;
class OptimizerRates;

struct LambdaLROptions {
  PerGroup<std::function<double(int64_t)>> lr_lambda = {};  ///< required
};

struct MultiplicativeLROptions {
  PerGroup<std::function<double(int64_t)>> lr_lambda = {};  ///< required
};

struct StepLROptions {
  double gamma = 0.1;
  int64_t step_size = 0;  ///< required
};

struct MultiStepLROptions {
  double gamma = 0.1;
  std::vector<int64_t> milestones = {};  ///< required
};

struct ConstantLROptions {
  double factor = 1.0 / 3;
  int64_t total_iters = 5;
};

struct LinearLROptions {
  double end_factor = 1.0;
  double start_factor = 1.0 / 3;
  int64_t total_iters = 5;
};

struct ExponentialLROptions {
  double gamma = 0;  ///< required
};

struct PolynomialLROptions {
  double power = 1.0;
  int64_t total_iters = 5;
};

struct CosineAnnealingLROptions {
  double eta_min = 0.0;
  int64_t T_max = 0;  ///< required
};

struct CosineAnnealingWarmRestartsOptions {
  double eta_min = 0.0;
  int64_t T_0 = 0;  ///< required
  int64_t T_mult = 1;
};

enum class CyclicMode { triangular, triangular2, exp_range };
enum class CyclicScaleMode { cycle, iterations };

struct CyclicLROptions {
  PerGroup<double> base_lr = {};  ///< required
  PerGroup<double> base_momentum = 0.8;
  bool cycle_momentum = true;
  double gamma = 1.0;
  PerGroup<double> max_lr = {};  ///< required
  PerGroup<double> max_momentum = 0.9;
  CyclicMode mode = CyclicMode::triangular;
  std::function<double(double)> scale_fn = {};          ///< instead of a mode
  CyclicScaleMode scale_mode = CyclicScaleMode::cycle;  ///< the argument of scale_fn
  std::optional<int64_t> step_size_down = {};           ///< unset: same as step_size_up
  int64_t step_size_up = 2000;
};

enum class AnnealStrategy { cos, linear };

struct OneCycleLROptions {
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;
  PerGroup<double> base_momentum = 0.85;
  bool cycle_momentum = true;
  double div_factor = 25.0;
  int64_t epochs = 0;  ///< epochs; with steps_per_epoch an alternative to total_steps
  double final_div_factor = 1e4;
  PerGroup<double> max_lr = {};  ///< required
  PerGroup<double> max_momentum = 0.95;
  double pct_start = 0.3;
  int64_t steps_per_epoch = 0;
  bool three_phase = false;
  int64_t total_steps = 0;
};

enum class WarmupDecay { constant, cosine, linear };

struct WarmupLROptions {
  WarmupDecay decay = WarmupDecay::cosine;  ///< the schedule after the warm-up
  double end_factor = 0.0;                  ///< the final rate, as a fraction of the base rate, reached at
                                            ///< total_steps
  int64_t total_steps = 0;                  ///< warm-up included; required unless the rate stays constant
  int64_t warmup_steps = 0;
};

enum class PlateauMode { min, max };
enum class ThresholdMode { rel, abs };

struct ReduceLROnPlateauOptions {
  int64_t cooldown = 0;
  double eps = 1e-8;
  double factor = 0.1;
  PerGroup<double> min_lr = 0.0;
  PlateauMode mode = PlateauMode::min;
  int64_t patience = 10;
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::rel;
};

struct Schedule;

struct ChainedSchedulerOptions {
  std::vector<Schedule> schedules;  ///< required
};

struct SequentialLROptions {
  std::vector<int64_t> milestones = {};  ///< ascending; one fewer than schedules
  std::vector<Schedule> schedules;       ///< required
};

/// A schedule that is not yet bound to an optimizer, for SequentialLR and ChainedScheduler: the options of one of the
/// schedulers, or a function that makes a user-defined scheduler.
struct Schedule {
  using Maker = std::function<std::unique_ptr<LRScheduler>(OptimizerRates)>;
  using Options =
      std::variant<ChainedSchedulerOptions, ConstantLROptions, CosineAnnealingLROptions,
                   CosineAnnealingWarmRestartsOptions, CyclicLROptions, ExponentialLROptions, LambdaLROptions,
                   LinearLROptions, MultiplicativeLROptions, MultiStepLROptions, OneCycleLROptions, PolynomialLROptions,
                   SequentialLROptions, StepLROptions, WarmupLROptions, Maker>;
  template <class T>
    requires(!std::same_as<std::remove_cvref_t<T>, Schedule> && std::constructible_from<Options, T>)
  Schedule(T&& one) : options(std::forward<T>(one)) {}

  Options options;
};

}  // namespace muster
