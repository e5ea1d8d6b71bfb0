#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace muster::parallel {

/// Whether wrap() marked this module. Notes that a prepared model contains it.
bool claim_mark(const torch::nn::Module& module);
/// The classes of modules that this thread marked and that no prepared model contains; each is named once.
std::vector<std::string> take_lost_marks();

}  // namespace muster::parallel
