#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace muster::optim {

/// The update rules that have a fused kernel.
enum class Rule { own, adagrad, adam, adamw, sgd };

inline constexpr size_t kMaxStates = 3;

/// By the exact dynamic type: a derived class may have a step() of its own.
Rule rule_of(const torch::optim::Optimizer& optimizer);
std::string class_name(const torch::optim::Optimizer& optimizer);

/// How many state tensors a parameter of a group with these options has.
size_t state_count(Rule rule, const torch::optim::OptimizerOptions& options);
/// A state object of LibTorch's class for this rule, not stepped yet.
std::unique_ptr<torch::optim::OptimizerParamState> make_state(Rule rule);
at::Tensor& state_tensor(Rule rule, torch::optim::OptimizerParamState& state, size_t k);
/// Updates so far; nullptr for SGD, which does not count them.
int64_t* state_step(Rule rule, torch::optim::OptimizerParamState& state);
/// What state k holds before the first update.
double initial_value(Rule rule, const torch::optim::OptimizerOptions& options);

/// The arguments of one call of a fused kernel: 1-D tensors of equal lengths, entry by entry.
struct UpdateCall {
  size_t group = 0;
  bool first = false;            ///< SGD: momentum starts with this gradient
  int64_t step = 0;              ///< updates before this call
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  std::array<std::vector<at::Tensor>, kMaxStates> states;
  std::vector<at::Tensor> steps;   ///< one float32 scalar, repeated
};

/// Requires: gradients off, dispatch below autograd.
void run_update(Rule rule, const torch::optim::OptimizerOptions& options, UpdateCall& call);

}  // namespace muster::optim
