#pragma once

#include <map>
#include <set>
#include <string>

#include <torch/nn/module.h>

#include "muster/parallel/sharded_options.h"

namespace muster::parallel {

/// "prefix.name", or the name alone if the prefix is empty.
std::string qualified(const std::string& prefix, const std::string& name);

/// The submodules that are units, with their first names; see plan_units().
std::map<const torch::nn::Module*, std::string> unit_boundaries(const torch::nn::Module& root,
                                                                const ShardedOptions& options);
/// The submodules that the options ignore. Both throw: ConfigError (MU148).
std::set<const torch::nn::Module*> ignored_modules(const torch::nn::Module& root, const ShardedOptions& options);

}  // namespace muster::parallel
