#pragma once

#include "parallel/local.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace muster::parallel {

/// Parameters that are gathered and freed together: one dtype, one device, each parameter once, in the module's order.
struct UnitPlan {
  std::string name;   ///< of the module it was made of; "root" for what is in no other unit
  bool root = false;
  std::vector<NamedTensor> parameters;
};

/// Cuts a module into units. Boundaries are the modules marked by wrap(); without marks, and with `find_blocks`, the
/// repeated ones: children of one module that have parameters and equal type, in a Sequential or ModuleList, or
/// anywhere if they have children of their own. A nested unit takes its parameters out of the outer one. What is left, and what two
/// units share, is the root's, which comes first. Units come in the module's order; none is empty.
std::vector<UnitPlan> plan_units(const torch::nn::Module& module, bool find_blocks);

}  // namespace muster::parallel
