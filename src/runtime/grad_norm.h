#pragma once

#include <functional>
#include <memory>

#include <torch/nn/module.h>

#include "muster/optim/grad_norm.h"

namespace muster::runtime {

class RuntimeState;

/// The implementation of Model::grad_norm(). Requires: the module exists at every call.
/// Throws, when called: UsageError (MU324) if the runtime no longer exists.
std::function<GradNorm()> grad_norm_of(const torch::nn::Module& module, std::weak_ptr<RuntimeState> state);

}  // namespace muster::runtime
