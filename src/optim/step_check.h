#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "optim/rule.h"

/// Checks whether the kernels of the installed LibTorch make the steps that its own optimizers make in float64.
/// Why: docs/decisions/0160-kernels-are-checked-where-they-run.md.
namespace muster::optim {

/// How far values may be from the values after the same number of steps in float64. In each step the values and the
/// states that make up the update are rounded to the dtype, and an update is smaller than the value. A lost update
/// causes a larger error.
double step_tolerance(at::ScalarType dtype, int64_t steps, double largest_value);

struct WrongStep {
  UpdateRule rule;
  at::ScalarType dtype;
  std::string what;  ///< "Adam in Half: 1.5 instead of 1.25"
};

using UpdateFunction =
    std::function<void(UpdateRule, torch::optim::Optimizer&, const torch::optim::OptimizerOptions&, UpdateCall&)>;

/// Makes two steps of each rule and dtype with kernels on a CPU, with a few options. Takes a few milliseconds.
std::vector<WrongStep> find_wrong_steps(const UpdateFunction& update = run_update);

/// Throws: ConfigError (MU580) if a step by this rule in this dtype on a CPU is among `wrong`.
void require_right_step(const std::vector<WrongStep>& wrong, UpdateRule rule, at::ScalarType dtype);
/// Uses the wrong steps that this process found at its first call.
void require_right_step(UpdateRule rule, at::ScalarType dtype);

}  // namespace muster::optim
