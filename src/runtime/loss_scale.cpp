#include "runtime/loss_scale.h"

#include "muster/base/error.h"

namespace muster::runtime {

LossScale LossScaling::scale_on(const std::optional<at::Device>& device) {
  if (leaves_device(device)) {
    on_device_.reset();
    check_again();
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

void LossScaling::check_again() {
  unscaled_ = checked_ = found_ = false;
  scaler_.clear_found();
  if (on_device_) on_device_->clear_found();
}

void LossScaling::clear_gradients() {
  gradient_scale_ = {};
  if (checked_) {
    if (!on_device_ && found_inf()) update();
    if (on_device_ && on_device_->found_inf().item<float>() > 0) {
      const auto state = update_on_device().cpu();
      const auto* number = state.const_data_ptr<double>();
      follow({.growth_tracker = static_cast<int64_t>(number[0]), .scale = number[1]});
    }
  }
  check_again();
}

at::Tensor LossScaling::update_on_device() {
  on_device_->update(loss_scale_.on(on_device_->device()));
  unscaled_ = checked_ = false;
  return on_device_->state();
}

void LossScaling::update() {
  const bool found = found_inf();
  unscaled_ = checked_ = found_ = false;
  scaler_.update(found, loss_scale_.value());
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
  check_again();
}

LossScaling::Saved LossScaling::save() const {
  return {.gradient_scale = gradient_scale_.value(),
          .loss_scale = loss_scale_.value(),
          .scaler = scaler_.state_dict(),
          .found_inf = on_device_ ? on_device_->found_inf().item<float>() > 0 : found_inf()};
}

void LossScaling::load(const Saved& saved) {
  load_state(saved.scaler);
  gradient_scale_ = {saved.gradient_scale};
  loss_scale_ = {saved.loss_scale};
  checked_ = found_ = saved.found_inf;
}

}  // namespace muster::runtime
