#pragma once

#include <filesystem>
#include <memory>

#include <torch/nn/module.h>

#include "muster/checkpoint/options.h"

namespace muster::runtime {

class RuntimeState;

/// The implementation of Runtime::load_model(). Collective.
IncompatibleKeys load_weights(RuntimeState& state, const std::shared_ptr<torch::nn::Module>& module,
                              const std::filesystem::path& path, const LoadStateDictOptions& options);

}  // namespace muster::runtime
