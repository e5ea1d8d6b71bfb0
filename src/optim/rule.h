#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace muster::optim {

/// The update rules that work on any range of elements; `unfused`: every other optimizer.
enum class UpdateRule { unfused, adagrad, adam, adamw, elementwise, rmsprop, sgd };

inline constexpr size_t kMaxStates = 8;

/// Decides by the exact dynamic type, since a derived class may have its own step(). For ElementwiseOptimizer, any
/// derived class counts.
UpdateRule update_rule_of(const torch::optim::Optimizer& optimizer);
std::string class_name(const torch::optim::Optimizer& optimizer);

/// Which state tensors a parameter of a group with these options has.
using StateSet = std::bitset<kMaxStates>;
StateSet states_of(UpdateRule rule, const torch::optim::Optimizer& optimizer,
                   const torch::optim::OptimizerOptions& options);
/// A state object of the class for this rule, before its first step.
std::unique_ptr<torch::optim::OptimizerParamState> make_state(UpdateRule rule,
                                                              const torch::optim::Optimizer& optimizer);
at::Tensor& state_tensor(UpdateRule rule, torch::optim::OptimizerParamState& state, size_t k);
/// The number of updates so far; nullptr for SGD, which does not count them.
int64_t* state_step(UpdateRule rule, torch::optim::OptimizerParamState& state);
/// The value of state k before the first update.
double initial_value(UpdateRule rule, const torch::optim::OptimizerOptions& options);

/// The arguments of one call of an update rule: 1-D tensors of equal lengths, entry by entry.
struct UpdateCall {
  size_t group = 0;
  bool first = false;  ///< whether momentum of SGD starts with this gradient
  int64_t step = 0;    ///< number of updates before this call
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  std::array<std::vector<at::Tensor>, kMaxStates> states;
  std::vector<at::Tensor> steps;        ///< one float32 scalar, repeated
  std::optional<at::Tensor> found_inf;  ///< a flag: if it is 1, nothing changes; a custom update() takes none
};

/// Requires: gradients are off, and dispatch is below autograd.
void run_update(UpdateRule rule, torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options,
                UpdateCall& call);

/// Why an optimizer with rule `unfused` needs full parameters.
std::string why_full(const torch::optim::Optimizer& optimizer);

// Checks whether the kernels of the installed LibTorch make the steps that its own optimizers make in float64.
// Why: docs/decisions/0160-kernels-are-checked-where-they-run.md.

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
