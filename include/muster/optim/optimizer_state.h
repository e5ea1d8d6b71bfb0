#pragma once

#include <functional>

#include <torch/optim/optimizer.h>

#include "muster/tree/state.h"

namespace muster {

/// The options and the state of an optimizer, in the layout and with the names of Python's Optimizer.state_dict():
/// {"state": {"0": {"step": 3, "exp_avg": tensor, ...}, ...}, "param_groups": [{"lr": 0.1, ..., "params": [0, 1]}]}.
/// Parameters are numbered over all groups; parameters that were never updated have no entry in "state". Counts are
/// integers, which Python accepts as well as its own float tensors. Options that only Python has get Python's defaults.
/// Tensors share memory with the optimizer's state. Supports SGD, Adam, AdamW, Adagrad, RMSprop, LBFGS and
/// ElementwiseOptimizer and classes derived from them. Any other class is saved by its save(OutputArchive&), as
/// {"class": name, "archive": bytes}.
/// Throws: CheckpointError (MU132) for a class whose save() writes nothing.
State state_dict(const torch::optim::Optimizer& optimizer);

/// Loads options and state that were saved by state_dict() or by Python. Tensors are copied to the dtype and device of
/// the parameter and, if they have its shape, to its strides. Parameters without an entry lose their state.
/// Throws: CheckpointError (MU131, MU132, MU208, MU209), changing nothing, if the state does not fit this optimizer.
void load_state_dict(torch::optim::Optimizer& optimizer, const State& state);
/// Loads in two steps: checks everything now, and changes nothing. The returned function applies the state, once; it
/// fails only for lack of memory (or if load() of a custom class throws).
/// Requires: the optimizer outlives the function.
std::function<void()> prepare_load(torch::optim::Optimizer& optimizer, const State& state);
/// Prepares a load for parameters that are not updated in their own dtype: `dtype_of` returns the dtype to which a
/// parameter's tensors are copied.
std::function<void()> prepare_load(torch::optim::Optimizer& optimizer, const State& state,
                                   const std::function<at::ScalarType(const at::Tensor&)>& dtype_of);

/// The options of one group, as in "param_groups"; empty for an unknown class.
State options_of(torch::optim::OptimizerParamGroup& group);
/// Sets the options of a group to those that options_of() returned; does nothing for an unknown class.
/// Throws: CheckpointError (MU131, MU208, MU209) if they are those of another class.
void set_options(torch::optim::OptimizerParamGroup& group, const State& saved);

/// Replaces each state tensor of this parameter that has its shape by f(tensor). Does nothing for an unknown class.
void change_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                  const std::function<at::Tensor(const at::Tensor&)>& f);

/// Calls f with each state tensor of this parameter. Does nothing for an unknown class.
void for_each_state_tensor(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                           const std::function<void(const at::Tensor&)>& f);

/// Moves the state tensors of this parameter to its current device. Does nothing for an unknown class.
void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

}  // namespace muster
