#include "runtime/loss_scale.h"

#include <ATen/ops/stack.h>

#include "muster/base/error.h"

namespace muster::runtime {

LossScale LossScaling::scale_on(const std::optional<at::Device>& device) {
  if (leaves_device(device)) {
    scaler_.follow(state());
    on_device_.reset();
    forget();
  }
  if (device && !on_device_) {
    on_device_.emplace(options_, scaler_.state_dict(), *device);
    if (found_inf()) on_device_->found_inf().fill_(1);
  }
  return device ? LossScale{.on_device = on_device_->scale()} : LossScale{scaler_.scale()};
}

void LossScaling::note_loss(const LossScale& scale) {
  loss_scale_ = gradient_scale_ = scale;
  unscaled_ = false;
}

void LossScaling::unscale(const std::vector<at::Tensor>& gradients) {
  if (on_device_) on_device_->unscale(gradients, gradient_scale_.on(on_device_->device()));
  else scaler_.unscale(gradients, gradient_scale_.value());
  gradient_scale_ = {};
  unscaled_ = checked_ = true;
}

void LossScaling::forget() {
  unscaled_ = checked_ = found_ = false;
  norm_ = 0;
  norms_.clear();
  scaler_.clear_found();
  if (on_device_) on_device_->clear_found();
}

void LossScaling::clear_gradients() {
  gradient_scale_ = {};
  const bool shrinks = !std::isfinite(std::exchange(norm_, 0));
  if (!norms_.empty()) {
    const auto overflow = at::stack(norms_).isfinite().all().logical_not().to(at::kFloat).view({1});
    on_device_->shrink_if(overflow, loss_scale_.on(on_device_->device()));
  }
  if (checked_) forget();
  unscaled_ = false;
  if (shrinks) scaler_.update(/*found_inf=*/true, loss_scale_.value());
}

at::Tensor LossScaling::update_on_device() {
  on_device_->update(loss_scale_.on(on_device_->device()));
  checked_ = found_ = false;
  norms_.clear();
  return on_device_->state();
}

void LossScaling::update(bool found_inf) {
  checked_ = found_ = false;
  norm_ = 0;
  scaler_.update(found_inf, loss_scale_.value());
}

GradScalerState LossScaling::state() const {
  if (!on_device_) return scaler_.state_dict();
  return precision::DeviceGradScaler::read(on_device_->state().cpu().const_data_ptr<double>());
}

void LossScaling::follow(const GradScalerState& state) {
  try {
    scaler_.follow(state);
  } catch (const Error&) {
    on_device_.reset();
    throw;
  }
}

void LossScaling::load_state(const GradScalerState& state) {
  scaler_.load_state_dict(state);
  on_device_.reset();
  forget();
}

LossScaling::Saved LossScaling::save() const {
  return {.gradient_scale = gradient_scale_.value(),
          .loss_scale = loss_scale_.value(),
          .scaler = state(),
          .found_inf = on_device_ ? on_device_->found_inf().item<float>() > 0 : found_inf()};
}

void LossScaling::load(const Saved& saved) {
  load_state(saved.scaler);
  gradient_scale_ = {saved.gradient_scale};
  loss_scale_ = {saved.loss_scale};
  checked_ = found_ = saved.found_inf;
}

}  // namespace muster::runtime
