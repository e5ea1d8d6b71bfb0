#include "gradients.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>

#include "hook/watched_storage.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/detail/norm.h"
#include "muster/parallel/managed_model.h"
#include "optim/device_norm.h"
#include "optim/distinct.h"

namespace muster::runtime {
namespace {

/// Throws: UsageError (MU582) if a parameter that no model of this runtime holds is sharded.
void require_unsharded(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters)
    if (hook::has_key(parameter))
      throw UsageError("MU582", formatted("gradients of a sharded model that this Accelerator or Fabric does not hold "
                                          "(a parameter of shape {}) were to be clipped, scaled or measured: call "
                                          "the Accelerator or Fabric that prepared it, and keep the handle that its "
                                          "prepare() or setup() returned",
                                          parameter.sizes()));
}

/// Calls f(model, parameters) for each model, and f(nullptr, parameters) for parameters that no model holds; each
/// parameter once.
template <class F>
void by_model(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, F&& f) {
  auto rest = optim::distinct_tensors(parameters);
  for (const auto& model : registry.models()) {
    const auto held =
        std::stable_partition(rest.begin(), rest.end(), [&](const at::Tensor& p) { return !model->managed->find(p); });
    if (held != rest.end()) f(model->managed.get(), std::vector<at::Tensor>(held, rest.end()));
    rest.erase(held, rest.end());
  }
  require_unsharded(rest);
  if (!rest.empty()) f(nullptr, rest);
}

/// Gradients of parameters that no model holds.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  return gradients;
}

double power_sum(parallel::ManagedModel* model, const std::vector<at::Tensor>& parameters, double p) {
  return model ? model->gradient_power_sum(parameters, p) : optim::power_sum(gradients_of(parameters), p);
}

}  // namespace

void for_each_gradient(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters,
                       const std::function<void(const at::Tensor&)>& f) {
  by_model(registry, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    if (model) return model->for_each_gradient(part, f);
    for (const auto& parameter : part)
      if (parameter.grad().defined()) f(parameter.grad());
  });
}

void scale_gradients(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, double factor) {
  const at::NoGradGuard no_grad;
  by_model(registry, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    if (model) return model->scale_gradients(part, factor);
    for (const auto& parameter : part)
      if (parameter.grad().defined()) optim::scale_by(parameter.grad(), factor);
  });
}

double gradient_norm(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, double p) {
  double total = 0;
  by_model(registry, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    const double sum = power_sum(model, part, p);
    total = std::isinf(p) && !std::isnan(sum) ? std::max(total, sum) : total + sum;
  });
  return optim::norm_from_power_sum(total, p);
}

at::Tensor device_gradient_norm(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters,
                                at::Device device, double p) {
  at::Tensor total;
  by_model(registry, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    const auto sum = model ? model->device_gradient_power_sum(part, p, device)
                           : optim::device_power_sum(gradients_of(part), device, p);
    total = total.defined() ? optim::added_power_sums(total, sum, p) : sum;
  });
  return optim::norm_from_power_sum(total, p);
}

void refuse_norm(double norm, double order, std::string_view whose) {
  throw UsageError("MU175", formatted("the norm of order {} of the gradients of {} is {}; lower the learning rate, or "
                                      "clip with error_if_nonfinite off",
                                      order, whose, norm));
}

bool any_sharded(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters) {
  bool sharded = false;
  by_model(registry, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>&) {
    sharded = sharded || (model && model->sharded());
  });
  return sharded;
}

}  // namespace muster::runtime
