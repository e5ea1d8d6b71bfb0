#pragma once

#include <string>

#include <torch/nn/module.h>

namespace muster::parallel {

/// The name of a batch normalization that convert_sync_batchnorm() converted; empty if there is none.
std::string first_synchronized_norm(const torch::nn::Module& module);

}  // namespace muster::parallel
