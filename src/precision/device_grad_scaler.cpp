#include "precision/device_grad_scaler.h"

#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace muster::precision {

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

at::Tensor DeviceGradScaler::state() const { return at::cat({tracker_.to(at::kDouble), scale_.view({1})}); }

}  // namespace muster::precision
