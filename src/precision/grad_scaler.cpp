#include "muster/precision/grad_scaler.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "device_grad_scaler.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::precision {
namespace {

/// Scales and their inverses must fit in float32, in which they are applied.
bool is_scale(double scale) {
  constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
  return scale <= kMost && scale >= 1 / kMost;
}

void require_sensible(const GradScalerOptions& options) {
  const bool good = is_scale(options.init_scale) && options.growth_factor > 1 && options.backoff_factor > 0 &&
                    options.backoff_factor < 1 && options.growth_interval > 0;
  if (!good)
    throw ConfigError(
        "MU149",
        formatted("loss scaling cannot work with init_scale {}, growth_factor {}, backoff_factor {}, growth_interval "
                  "{}: give a positive scale that float32 holds, a growth above 1, a backoff between 0 and 1 and a "
                  "positive interval",
                  options.init_scale, options.growth_factor, options.backoff_factor, options.growth_interval));
}

void require_scale(double next, double made_with) {
  if (!is_scale(next))
    throw UsageError("MU318",
                     formatted("the loss scale has fallen to {}, the least that can be undone, since in every step "
                               "some gradient was not finite, so no step was taken; look for the operation that makes "
                               "infinities or NaN (torch::autograd::DetectAnomalyGuard finds it), or train in "
                               "bf16-mixed",
                               made_with));
}

at::Tensor scalar(double value, at::ScalarType dtype, at::Device device = at::kCPU) {
  return at::full({1}, value, at::TensorOptions().dtype(dtype).device(device));
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), state_{0, options.init_scale} {
  require_sensible(options);
}

void GradScaler::unscale(const std::vector<at::Tensor>& gradients, double made_with) {
  const at::NoGradGuard no_grad;
  std::map<std::tuple<at::DeviceType, at::DeviceIndex, at::ScalarType>, std::vector<at::Tensor>> kinds;
  for (const auto& gradient : gradients)
    if (gradient.defined() && gradient.numel() > 0)
      kinds[{gradient.device().type(), gradient.device().index(), gradient.scalar_type()}].push_back(gradient);
  for (auto& [kind, list] : kinds) {
    const auto device = list.front().device();
    auto found = std::ranges::find(found_, device, &at::Tensor::device);
    if (found == found_.end())
      found = found_.insert(found_.end(), at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device)));
    at::_amp_foreach_non_finite_check_and_unscale_(list, *found, scalar(1.0 / made_with, at::kFloat, device));
  }
}

bool GradScaler::found_inf() const {
  return std::any_of(found_.begin(), found_.end(), [](const at::Tensor& flag) { return flag.item<float>() > 0; });
}

void GradScaler::update(bool found_inf, double made_with) {
  found_.clear();
  if (made_with < state_.scale) {
    if (!found_inf) return;
    state_.scale = made_with;
  }
  const at::NoGradGuard no_grad;
  auto scale = scalar(state_.scale, at::kFloat), tracker = scalar(static_cast<double>(state_.growth_tracker), at::kInt);
  at::_amp_update_scale_(scale, tracker, scalar(found_inf, at::kFloat), options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  require_scale(scale.item<float>(), made_with);
  state_ = {tracker.item<int>(), scale.item<float>()};
}

void GradScaler::follow(const GradScalerState& next) {
  require_scale(next.scale, state_.scale);
  state_ = next;
}

void GradScaler::load_state_dict(const GradScalerState& state) {
  if (!is_scale(state.scale) || state.growth_tracker < 0)
    throw ConfigError(
        "MU147",
        formatted("a loss scale of {} after {} good steps cannot be loaded: it must be positive and finite, and the "
                  "count not negative; is the file of another kind?",
                  state.scale, state.growth_tracker));
  state_ = state;
  found_.clear();
}

DeviceGradScaler::DeviceGradScaler(const GradScalerOptions& options, const GradScalerState& state, at::Device device)
    : options_(options), scale_(at::full({}, state.scale, at::TensorOptions(at::kDouble).device(device))),
      tracker_(at::full({1}, state.growth_tracker, at::TensorOptions(at::kInt).device(device))) {
  clear_found();
}

void DeviceGradScaler::clear_found() { found_ = at::zeros({1}, at::TensorOptions(at::kFloat).device(device())); }

void DeviceGradScaler::unscale(const std::vector<at::Tensor>& gradients, const at::Tensor& made_with) {
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const auto& gradient : gradients)
    if (gradient.defined() && gradient.numel() > 0) by_dtype[gradient.scalar_type()].push_back(gradient);
  const auto inverse = made_with.reciprocal().to(at::kFloat).view({1});
  for (auto& [dtype, list] : by_dtype) at::_amp_foreach_non_finite_check_and_unscale_(list, found_, inverse);
}

void DeviceGradScaler::update(const at::Tensor& made_with) {
  const at::NoGradGuard no_grad;
  const auto scale = scale_.to(at::kFloat).view({1});
  auto next = scale.clone(), count = tracker_.clone();
  const bool own = made_with.is_same(scale_);
  const auto smaller = made_with.lt(scale_), found = found_.gt(0);
  if (!own) next = at::where(smaller.logical_and(found), made_with.to(at::kFloat), next);
  at::_amp_update_scale_(next, count, found_, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  if (!own) {
    const auto stays = smaller.logical_and(found.logical_not());
    next = at::where(stays, scale, next);
    count = at::where(stays, tracker_, count);
  }
  scale_ = next.to(at::kDouble).squeeze(0);
  tracker_ = count;
  clear_found();
}

void DeviceGradScaler::shrink_if(const at::Tensor& overflow, const at::Tensor& made_with) {
  const at::NoGradGuard no_grad;
  const auto scale = scale_, tracker = tracker_, found = found_;
  found_ = overflow;
  update(made_with);
  scale_ = at::where(overflow[0].gt(0), scale_, scale);
  tracker_ = at::where(overflow.gt(0), tracker_, tracker);
  found_ = found;
}

at::Tensor DeviceGradScaler::state() const { return at::cat({tracker_.to(at::kDouble), scale_.view({1})}); }

}  // namespace muster::precision
