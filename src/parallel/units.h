#pragma once

#include "muster/parallel/sharded_options.h"
#include "parallel/local.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace muster::parallel {

/// Parameters that are gathered and freed together: one dtype, one device, all trainable or all frozen, each parameter once, in the module's order.
struct UnitPlan {
  std::string name;   ///< of the module it was made of; "root" for what is in no other unit
  bool root = false;
  std::vector<NamedTensor> parameters;
  bool keeps_dtype = false;   ///< they are used in the dtype they were built in
};

/// Cuts a module into units. Boundaries are the modules marked by wrap() and those that the options' unit_* fields name; without
/// any of these, and with `auto_wrap`, the repeated ones: children of one module that have parameters and equal type, in a
/// Sequential or ModuleList, or anywhere if they have children of their own; and the layers outside of these that hold as many
/// elements as the smallest of them. A nested unit takes its parameters out of the outer one. A parameter that is met in several
/// units belongs to the innermost unit round all of them. What is left is the root's, which comes first; parameters of ignored
/// modules, wherever they are met, belong to none. Units come in the module's order; none is empty.
/// Where a param_dtype is asked for, those of norms with running statistics (BatchNorm, InstanceNorm) keep the dtype they were built in, as
/// the statistics do.
/// Throws: ConfigError (MU148) for a name or class that no submodule has, listing those there are.
std::vector<UnitPlan> plan_units(const torch::nn::Module& module, const ShardedOptions& options);

/// The floating buffers that buffer_dtype is for: not those of such norms, and of ignored modules.
std::vector<at::Tensor> buffers_to_convert(const torch::nn::Module& module, const ShardedOptions& options);

}  // namespace muster::parallel
