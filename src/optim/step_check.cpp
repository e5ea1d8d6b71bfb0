#include "optim/step_check.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/flat_parameters.h"

namespace muster::optim {
namespace {

namespace lib = torch::optim;

constexpr int64_t kCount = 2 * kFlatPadding, kSteps = 2;

double epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return std::numeric_limits<double>::epsilon();
    case at::kFloat: return std::numeric_limits<float>::epsilon();
    case at::kHalf: return static_cast<double>(std::numeric_limits<c10::Half>::epsilon());
    default: return static_cast<double>(std::numeric_limits<c10::BFloat16>::epsilon());
  }
}

/// Values between 0.5 and 1.5 that every dtype represents exactly.
at::Tensor exact_values(bool rising) {
  const auto rise = at::arange(kCount, at::kDouble).remainder(128);
  return (rising ? rise + 64 : 191 - rise) / 128;
}

template <class Optimizer, class Options>
std::unique_ptr<lib::Optimizer> made(const at::Tensor& parameter, const Options& options) {
  return std::make_unique<Optimizer>(std::vector<at::Tensor>{parameter}, options);
}

std::vector<std::unique_ptr<lib::Optimizer>> checked_optimizers() {
  const auto parameter = [] { return exact_values(true); };
  std::vector<std::unique_ptr<lib::Optimizer>> all;
  all.push_back(made<lib::SGD>(parameter(), lib::SGDOptions(0.1).weight_decay(0.01)));
  all.push_back(made<lib::SGD>(parameter(), lib::SGDOptions(0.1).momentum(0.9).nesterov(true)));
  all.push_back(made<lib::Adam>(parameter(), lib::AdamOptions(0.1).weight_decay(0.01)));
  all.push_back(made<lib::Adam>(parameter(), lib::AdamOptions(0.1).amsgrad(true)));
  all.push_back(made<lib::AdamW>(parameter(), lib::AdamWOptions(0.1)));
  all.push_back(made<lib::AdamW>(parameter(), lib::AdamWOptions(0.1).amsgrad(true)));
  all.push_back(made<lib::Adagrad>(parameter(), lib::AdagradOptions(0.1).lr_decay(0.01)));
  all.push_back(made<lib::RMSprop>(parameter(), lib::RMSpropOptions(0.01).momentum(0.8).centered(true)));
  return all;
}

at::Tensor stepped(lib::Optimizer& optimizer, at::ScalarType dtype, const UpdateFunction& update) {
  const auto rule = update_rule_of(optimizer);
  const auto& options = optimizer.param_groups()[0].options();
  UpdateCall call;
  call.first = rule == UpdateRule::sgd;
  call.values = {exact_values(true).to(dtype)};
  call.gradients = {exact_values(false).to(dtype)};
  const auto states = states_of(rule, optimizer, options);
  for (size_t k = 0; k < kMaxStates; ++k)
    if (states[k]) call.states[k] = {at::full({kCount}, initial_value(rule, options), dtype)};
  call.steps = {at::zeros({}, at::kFloat)};
  for (; call.step < kSteps; ++call.step, call.first = false) update(rule, optimizer, options, call);
  return call.values[0].to(at::kDouble);
}

}  // namespace

double step_tolerance(at::ScalarType dtype, int64_t steps, double largest_value) {
  return static_cast<double>(steps) * epsilon(dtype) * largest_value;
}

std::vector<WrongStep> find_wrong_steps(const UpdateFunction& update) {
  const at::NoGradGuard no_grad;
  std::vector<WrongStep> wrong;
  for (const auto& optimizer : checked_optimizers()) {
    const auto& right = optimizer->param_groups()[0].params()[0];
    right.mutable_grad() = exact_values(false);
    for (int64_t i = 0; i < kSteps; ++i) optimizer->step();
    for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
      const auto values = stepped(*optimizer, dtype, update);
      const auto errors = (values - right).abs();
      const auto worst = errors.nan_to_num(std::numeric_limits<double>::max()).argmax();
      // Not `error > tolerance`, which is false for NaN.
      if (errors[worst].item<double>() <= step_tolerance(dtype, kSteps, exact_values(true).max().item<double>()))
        continue;
      wrong.push_back({update_rule_of(*optimizer), dtype,
                       formatted("{} in {}: {} instead of {}", class_name(*optimizer), c10::toString(dtype),
                                 values[worst].item<double>(), right[worst].item<double>())});
    }
  }
  return wrong;
}

void require_right_step(const std::vector<WrongStep>& wrong, UpdateRule rule, at::ScalarType dtype) {
  for (const auto& one : wrong)
    if (one.rule == rule && one.dtype == dtype)
      throw ConfigError("MU580", formatted("LibTorch {} makes wrong steps on this machine ({} after {} steps): train "
                                           "with another optimizer or precision, or build against another LibTorch",
                                           TORCH_VERSION, one.what, kSteps));
}

void require_right_step(UpdateRule rule, at::ScalarType dtype) {
  static const auto wrong = find_wrong_steps();
  require_right_step(wrong, rule, dtype);
}

}  // namespace muster::optim
