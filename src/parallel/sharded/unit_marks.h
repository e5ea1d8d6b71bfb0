#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace muster::parallel {

/// Whether wrap() marked this module. Records that a prepared model contains it.
bool claim_mark(const torch::nn::Module& module);
/// Classes of modules that this thread marked and that no prepared model contains, without repetitions.
std::vector<std::string> take_lost_marks();

}  // namespace muster::parallel
