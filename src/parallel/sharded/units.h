#pragma once

#include <map>
#include <set>

#include <torch/nn/module.h>

#include "muster/parallel/sharded_options.h"
#include "parallel/local.h"

namespace muster::parallel {

/// The submodules that are units, with their first names; see plan_units().
std::map<const torch::nn::Module*, std::string> unit_boundaries(const torch::nn::Module& root,
                                                                const ShardedOptions& options);
/// The submodules that the options ignore. Both throw: ConfigError (MU148).
std::set<const torch::nn::Module*> ignored_modules(const torch::nn::Module& root, const ShardedOptions& options);

/// Parameters that are gathered and freed together: they have one dtype and one device, all are trainable or all are
/// frozen, and none is repeated. In the module's order.
struct UnitPlan {
  std::string name;  ///< name of the unit's module; "root" for parameters that are in no other unit
  bool root = false;
  std::vector<NamedTensor> parameters;
  bool keeps_dtype = false;  ///< whether the parameters are used in the dtype that they were built in
};

/// Divides a module into units. The modules marked by wrap() and those that the options' unit_* fields name are units.
/// If there are none and `auto_wrap` is on, repeated modules are units: children of one module that have parameters and
/// equal type, in a Sequential or ModuleList, or anywhere if they have children; also layers outside of these that have
/// at least as many elements as the smallest of them. A nested unit's parameters are excluded from the enclosing unit.
/// A parameter that is in several units belongs to the innermost unit that encloses all of them. The rest belongs to
/// the root, which comes first; parameters of ignored modules, wherever they occur, belong to no unit. Units are in the
/// module's order; none is empty.
/// With a param_dtype, parameters of norms with running statistics (BatchNorm, InstanceNorm) keep the dtype they were
/// built in, like the statistics.
/// Throws: ConfigError (MU148) for a name or class that no submodule has, listing the existing ones.
/// Why: docs/decisions/0072-dtypes-of-a-sharded-model.md.
std::vector<UnitPlan> plan_units(const torch::nn::Module& module, const ShardedOptions& options);

/// The floating-point buffers that buffer_dtype applies to: all but those of norms with running statistics and of
/// ignored modules.
std::vector<at::Tensor> buffers_to_convert(const torch::nn::Module& module, const ShardedOptions& options);

/// Whether wrap() marked this module. Records that a prepared model contains it.
bool claim_mark(const torch::nn::Module& module);
/// Classes of modules that this thread marked and that no prepared model contains, without repetitions.
std::vector<std::string> take_lost_marks();

}  // namespace muster::parallel
