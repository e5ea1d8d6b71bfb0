#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model_registry.h"

/// Gradients of parameters, wherever models keep them; grad() for parameters that no model holds.
namespace muster::runtime {

void for_each_gradient(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters,
                       const std::function<void(const at::Tensor&)>& f);
/// Multiplies gradients, including those that are not communicated yet.
void scale_gradients(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, double factor);
/// The p-norm of all these gradients together. Collective: if a model is sharded.
double gradient_norm(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, double p);
/// The p-norm of gradients on this device; the result stays there.
at::Tensor device_gradient_norm(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters,
                                at::Device device, double p);
/// Reports an infinite or NaN norm. `whose`: "this step". Throws: UsageError (MU175), always.
[[noreturn]] void refuse_norm(double norm, double order, std::string_view whose);
/// True if some of the parameters are sharded, so that ranks see different gradients.
bool any_sharded(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters);

}  // namespace muster::runtime
