#pragma once

#include "model_registry.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

/// The gradients of some parameters, wherever models keep them; those of parameters that no model holds lie in grad().
namespace muster::runtime {

void for_each_gradient(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters,
                       const std::function<void(const at::Tensor&)>& f);
/// Multiplies gradients, also those that wait for communication.
void scale_gradients(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, double factor);
/// The norm of order p of all of them together. Collective: where a model is sharded.
double gradient_norm(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, double p);
/// Some of them are parts, so that ranks see different gradients.
bool any_sharded(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters);

}  // namespace muster::runtime
