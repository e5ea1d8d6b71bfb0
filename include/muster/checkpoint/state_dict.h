#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "muster/checkpoint/options.h"
#include "muster/checkpoint/weights.h"
#include "muster/tree/state.h"

namespace muster {

/// Copies each pair's second tensor into its first, which keeps dtype and device. Pairs that write the same memory are
/// copied in order. Copies of large CPU tensors bypass the CPU's caches, on the threads of LibTorch's operators. Not
/// recorded by autograd.
/// Collective: none.
void copy_values(const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs);

/// A module's parameters and buffers, with the names and the order that Python's state_dict gives for that module. The
/// tensors share the module's memory and do not require gradients.
/// Collective: none.
State state_dict(const torch::nn::Module& module);

/// How a state maps to a module's tensors.
struct StateDictFit {
  IncompatibleKeys report;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  ///< A tensor of the module, and its value, of the same shape.
};

/// Determines what load_state_dict would copy, without copying: it reads only names, shapes and dtypes of the module's
/// tensors. `what`: the state's name in messages. Throws: as load_state_dict.
/// Collective: none.
StateDictFit fit_state_dict(const torch::nn::Module& module, const State& state,
                            const LoadStateDictOptions& options = {}, std::string_view what = "the state");

/// Copies a state into a module's parameters and buffers, which keep dtype and device. Values are converted to the
/// module's dtype, as Python does. A tensor of the module that shares memory with one that is filled needs no value.
/// The num_batches_tracked counts may be missing if the state has none at all, as in files from before PyTorch 0.4.1.
/// Returns the names that only one side has; both lists are empty if strict.
/// Throws: CheckpointError MU228 for names that only one side has, if strict, and always for a shape that differs, a
/// value that is not a tensor, or one that cannot be converted; all are listed, and nothing is copied.
/// Collective: none.
IncompatibleKeys load_state_dict(torch::nn::Module& module, const State& state,
                                 const LoadStateDictOptions& options = {});

}  // namespace muster
