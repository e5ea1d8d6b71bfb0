#include "muster/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include <ATen/core/grad_mode.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/detail/distinct.h"
#include "muster/optim/detail/each_group.h"
#include "muster/optim/detail/norm.h"
#include "muster/optim/detail/per_group.h"

namespace muster {
namespace {

/// Of each group what no group before it has. A tensor's impl is its identity.
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

/// Requires: each parameter once.
double norm_of(const std::vector<at::Tensor>& parameters, double p) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  return optim::norm_from_power_sum(optim::power_sum(gradients, p), p);
}

void apply_clip(const std::vector<at::Tensor>& parameters, const optim::ClipDecision& decision) {
  at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    if (decision.drop) parameter.mutable_grad().reset();
    else parameter.grad().mul_(decision.factor);
  }
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

double clip_grad_norm_(const std::vector<at::Tensor>& listed, double max_norm, ClipNormOptions options) {
  const auto parameters = optim::distinct_tensors(listed);
  const double norm = norm_of(parameters, options.norm_type);
  apply_clip(parameters, optim::decide_clip(norm, max_norm, options.non_finite));
  return norm;
}

std::vector<double> clip_grad_norm_(torch::optim::Optimizer& optimizer, const PerGroup<double>& max_norm,
                                    ClipNormOptions options) {
  const auto groups = distinct_groups(optimizer);
  const auto bounds = optim::clip_bounds(max_norm, groups.size());
  std::vector<double> norms;
  std::vector<optim::ClipDecision> decisions;
  for (size_t g = 0; g < groups.size(); ++g) {
    norms.push_back(norm_of(groups[g], options.norm_type));
    decisions.push_back(optim::decide_clip(norms[g], bounds[g], options.non_finite));
  }
  const bool drop = std::any_of(decisions.begin(), decisions.end(), [](const auto& decision) { return decision.drop; });
  for (size_t g = 0; g < groups.size(); ++g) apply_clip(groups[g], {decisions[g].factor, drop});
  return norms;
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  at::NoGradGuard no_grad;
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) parameter.grad().clamp_(-clip_value, clip_value);
}

}  // namespace muster
