#include "runtime/loss_scale.h"

#include "muster/base/error.h"

namespace muster::runtime {

LossScale LossScaling::scale_on(const std::optional<at::Device>& device) {
  if (leaves_device(device)) on_device_.reset();
  if (device && !on_device_) on_device_.emplace(options_, scaler_.state_dict(), *device);
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
  unscaled_ = true;
}

void LossScaling::clear_gradients() {
  gradient_scale_ = {};
  unscaled_ = false;
}

at::Tensor LossScaling::update_on_device() {
  on_device_->update(loss_scale_.on(on_device_->device()));
  return on_device_->state();
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
}

LossScaling::Saved LossScaling::save() const {
  return {.gradient_scale = gradient_scale_.value(),
          .loss_scale = loss_scale_.value(),
          .scaler = scaler_.state_dict(),
          .unscaled = unscaled_};
}

void LossScaling::load(const Saved& saved) {
  load_state(saved.scaler);
  gradient_scale_ = {saved.gradient_scale};
  loss_scale_ = {saved.loss_scale};
  unscaled_ = saved.unscaled;
}

}  // namespace muster::runtime
