#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "muster/parallel/sharded_options.h"
#include "parallel/local.h"

namespace muster::parallel {

/// Parameters that are gathered and freed together: one dtype, one device, all trainable or all frozen, each parameter
/// once, in the module's order.
struct UnitPlan {
  std::string name;  ///< of its module; "root" for what is in no other unit
  bool root = false;
  std::vector<NamedTensor> parameters;
  bool keeps_dtype = false;  ///< they are used in the dtype they were built in
};

/// Divides a module into units. The modules marked by wrap() and those that the options' unit_* fields name are units.
/// Without any of these, and with `auto_wrap`, the repeated ones are: children of one module that have parameters and
/// equal type, in a Sequential or ModuleList, or anywhere if they have children; and the layers outside of these that
/// have at least as many elements as the smallest of them. A nested unit's parameters are excluded from the enclosing
/// unit. A parameter that is in several units belongs to the innermost unit that encloses all of them. The rest is the
/// root's, which comes first; parameters of ignored modules, wherever they occur, belong to none. Units are in the
/// module's order; none is empty.
/// With a param_dtype, those of norms with running statistics (BatchNorm, InstanceNorm) keep the dtype they were built
/// in, as the statistics do.
/// Throws: ConfigError (MU148) for a name or class that no submodule has, listing the existing ones.
std::vector<UnitPlan> plan_units(const torch::nn::Module& module, const ShardedOptions& options);

/// The floating-point buffers that buffer_dtype applies to: not those of such norms, and of ignored modules.
std::vector<at::Tensor> buffers_to_convert(const torch::nn::Module& module, const ShardedOptions& options);

}  // namespace muster::parallel
