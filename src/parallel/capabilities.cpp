#include "muster/parallel/capabilities.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include "muster/parallel/managed_model.h"
#include "optim/device_norm.h"
#include "parallel/local.h"

namespace muster::parallel {

double ManagedModel::gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) {
  return optim::power_sum(gradients_of(*this, parameters), p);
}

at::Tensor ManagedModel::device_gradient_power_sum(const std::vector<at::Tensor>& parameters, double p,
                                                   at::Device device) {
  if (sharded()) return at::full({}, gradient_power_sum(parameters, p), at::TensorOptions(at::kDouble).device(device));
  return optim::device_power_sum(gradients_of(*this, parameters), device, p);
}

GradientParts ManagedModel::gradient_parts(const at::Tensor& parameter) {
  return {.whole = parameter.unsafeGetTensorImpl()->grad()};  // Tensor::grad() asks autograd about leaves first
}

void ManagedModel::load_gradient(const at::Tensor& parameter, const GradientParts& parts) {
  zero_local_gradient(parameter, /*set_to_none=*/true);
  if (!parts.whole.defined()) return;
  const at::NoGradGuard no_grad;
  parameter.mutable_grad() = at::empty_like(parameter).copy_(parts.whole);
}

}  // namespace muster::parallel
