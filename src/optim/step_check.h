#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "optim/rule.h"

/// Do the kernels of the LibTorch at hand step as its own optimizers do in float64?
namespace muster::optim {

/// How far values may be from those that the same `steps` have in float64: in each step they and the states that make
/// their update are rounded to the dtype, and an update is smaller than the value. An update that is lost is larger.
double step_tolerance(at::ScalarType dtype, int64_t steps, double largest_value);

struct WrongStep {
  UpdateRule rule;
  at::ScalarType dtype;
  std::string what;  ///< "Adam in Half: 1.5 instead of 1.25"
};

using UpdateFunction =
    std::function<void(UpdateRule, torch::optim::Optimizer&, const torch::optim::OptimizerOptions&, UpdateCall&)>;

/// Makes two steps of each rule and dtype that have kernels on a CPU, with a few options, in a few milliseconds.
std::vector<WrongStep> find_wrong_steps(const UpdateFunction& update = run_update);

/// Throws: ConfigError (MU580) if a step by this rule in this dtype on a CPU is among `wrong`.
void require_right_step(const std::vector<WrongStep>& wrong, UpdateRule rule, at::ScalarType dtype);
/// The same by what this process finds at its first call.
void require_right_step(UpdateRule rule, at::ScalarType dtype);

}  // namespace muster::optim
