#pragma once

#include <functional>

#include <torch/optim/optimizer.h>

#include "muster/tree/state.h"

namespace muster {

/// The options and the state of an optimizer, in the layout and with the names of Python's Optimizer.state_dict():
/// {"state": {"0": {"step": 3, "exp_avg": tensor, ...}, ...}, "param_groups": [{"lr": 0.1, ..., "params": [0, 1]}]}.
/// Parameters are numbered over all groups; those that were never updated have no entry in "state". Counts are
/// integers, which Python takes as well as its own float tensors. Options that only Python has get its defaults.
/// Tensors share memory. Supports SGD, Adam, AdamW, Adagrad, RMSprop, LBFGS and ElementwiseOptimizer and classes
/// derived from them. Any other class is saved as what its own save(OutputArchive&) writes, as {"class": name,
/// "archive": bytes}.
/// Throws: CheckpointError (MU132) for a class that writes nothing.
State state_dict(const torch::optim::Optimizer& optimizer);

/// Loads options and state of such an optimizer, saved here or by Python. Tensors are copied to the dtype and device of
/// the parameter and, if they have its shape, to its strides. Parameters without an entry lose their state.
/// Throws: CheckpointError (MU131, MU132, MU208, MU209) if the state is not one of this optimizer; nothing is changed
/// then.
void load_state_dict(torch::optim::Optimizer& optimizer, const State& state);
/// The same in two steps: checks everything now and changes nothing. The returned function applies the state, once; it
/// fails only for lack of memory (or if load() of a user-defined class throws).
/// Requires: the optimizer outlives the function.
std::function<void()> prepare_load(torch::optim::Optimizer& optimizer, const State& state);
/// The same for parameters that are not updated in their own dtype: `dtype_of` gives the one to which a parameter's
/// tensors are copied.
std::function<void()> prepare_load(torch::optim::Optimizer& optimizer, const State& state,
                                   const std::function<at::ScalarType(const at::Tensor&)>& dtype_of);

/// The options of a group alone, as in "param_groups"; empty for an unknown class.
State options_of(torch::optim::OptimizerParamGroup& group);

/// Replaces each state tensor of this parameter that has its shape by f(tensor). Does nothing for an unknown class.
void change_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                  const std::function<at::Tensor(const at::Tensor&)>& f);

/// Calls f with each state tensor of this parameter. Does nothing for an unknown class.
void for_each_state_tensor(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                           const std::function<void(const at::Tensor&)>& f);

/// Moves the state tensors of this parameter to where it is now. Does nothing for an unknown class.
void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

}  // namespace muster
