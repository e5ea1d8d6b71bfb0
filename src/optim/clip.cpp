#include "muster/optim/clip.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>

#include "muster/base/error.h"
#include "muster/optim/detail/norm.h"
#include "optim/device_norm.h"
#include "optim/parameter_groups.h"

namespace muster {
namespace {

/// For each group, the parameters that no earlier group has. A tensor's impl is its identity.
std::vector<std::vector<at::Tensor>> distinct_groups(const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& group : optimizer.param_groups()) {
    auto& own = groups.emplace_back();
    for (const auto& parameter : group.params())
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) own.push_back(parameter);
  }
  return groups;
}

double norm_of(const std::vector<at::Tensor>& parameters, double p) {
  return optim::norm_from_power_sum(optim::power_sum(optim::gradients_of(parameters), p), p);
}

/// Clips without making the host wait; nullopt if that is not possible.
std::optional<GradNorm> clip_on_device(const std::vector<at::Tensor>& parameters, double max_norm,
                                       const ClipNormOptions& options) {
  if (options.non_finite != NonFinite::pass) return std::nullopt;
  const auto gradients = optim::gradients_of(parameters);
  const auto device = optim::single_device_of(gradients);
  if (!device) return std::nullopt;
  const at::NoGradGuard no_grad;
  const auto p = options.norm_type;
  auto norm = optim::norm_from_power_sum(optim::device_power_sum(gradients, *device, p), p);
  const auto factor = optim::clip_coefficient(norm, max_norm);
  for (const auto& gradient : gradients) optim::scale_by(gradient, factor);
  return GradNorm(std::move(norm));
}

void apply_clip(const std::vector<at::Tensor>& parameters, const optim::ClipDecision& decision) {
  at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    if (decision.drop) parameter.mutable_grad().reset();
    else optim::scale_by(parameter.grad(), decision.factor);
  }
}

/// Requires: no parameter is repeated.
GradNorms clip_groups(const std::vector<std::vector<at::Tensor>>& groups, const std::vector<double>& bounds,
                      const ClipNormOptions& options) {
  GradNorms norms;
  std::vector<std::optional<optim::ClipDecision>> decisions(groups.size());  // nullopt: clipped on its device
  bool drop = false;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (auto norm = clip_on_device(groups[g], bounds[g], options)) {
      norms.push_back(*std::move(norm));
      continue;
    }
    norms.push_back(norm_of(groups[g], options.norm_type));
    decisions[g] = optim::decide_clip(norms[g], bounds[g], options.non_finite);
    drop = drop || decisions[g]->drop;
  }
  for (size_t g = 0; g < groups.size(); ++g)
    if (decisions[g]) apply_clip(groups[g], {decisions[g]->factor, drop});
  return norms;
}

}  // namespace

optim::ClipDecision optim::decide_clip(double norm, double max_norm, NonFinite non_finite) {
  if (std::isfinite(norm) || non_finite == NonFinite::pass) return {clip_coefficient(norm, max_norm), false};
  if (non_finite == NonFinite::skip) return {1.0, true};
  throw UsageError(
      "MU143", formatted("the gradients' norm is {}; lower the learning rate, or clip with NonFinite::skip to leave "
                         "such steps out",
                         norm));
}

std::vector<double> optim::clip_bounds(const PerGroup<double>& max_norm, size_t groups) {
  return each_group(max_norm, groups, "max_norm");
}

GradNorm clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipNormOptions options) {
  return clip_groups({optim::distinct_tensors(parameters)}, {max_norm}, options).front();
}

GradNorms clip_grad_norm_(torch::optim::Optimizer& optimizer, const PerGroup<double>& max_norm,
                          ClipNormOptions options) {
  const auto groups = distinct_groups(optimizer);
  return clip_groups(groups, optim::clip_bounds(max_norm, groups.size()), options);
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  at::NoGradGuard no_grad;
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) parameter.grad().clamp_(-clip_value, clip_value);
}

}  // namespace muster
