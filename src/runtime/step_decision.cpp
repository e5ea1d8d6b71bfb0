#include <algorithm>
#include <functional>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "comm/agreement.h"
#include "comm/device_agreement.h"
#include "gradients.h"
#include "muster/base/error.h"
#include "muster/parallel/managed_model.h"
#include "prepared_optimizer.h"

/// What decides whether a step is made: loss scales, norms that are not finite, and ranks that disagree.
namespace muster::runtime {

/// Where all parameters are; nullopt for the CPU, and for several devices.
std::optional<at::Device> PreparedOptimizer::device_of_parameters() const {
  std::optional<at::Device> device;
  for (const auto& group : inner_->param_groups())
    for (const auto& parameter : group.params()) {
      if (parameter.is_cpu() || (device && *device != parameter.device())) return std::nullopt;
      device = parameter.device();
    }
  return device;
}

std::optional<LossScale> PreparedOptimizer::loss_scale() {
  if (!scaler_) return std::nullopt;
  const auto device = device_of_parameters();
  if (device_scaler_ && device_scaler_->device() != device) {
    wait_for_step();
    device_scaler_.reset();
  }
  if (device && !device_scaler_) device_scaler_.emplace(*context_.scaling, scaler_->state_dict(), *device);
  return device ? LossScale{.on_device = device_scaler_->scale()} : LossScale{scaler_->scale()};
}

bool PreparedOptimizer::has_gradients() const {
  bool found = false;
  for_each_gradient(*context_.registry, parameters(), [&](const at::Tensor&) { found = true; });
  return found;
}

void PreparedOptimizer::rescale_gradients(const LossScale& scale) {
  if (!scaler_) return;
  if (const bool on_device = scale.on_device.defined(); !(gradient_scale_ == scale) && (!on_device || has_gradients()))
    scale_gradients(*context_.registry, parameters(), scale.value() / gradient_scale_.value());
  loss_scale_ = gradient_scale_ = scale;
  unscaled_ = false;
}

void PreparedOptimizer::unscale() {
  if (!scaler_ || unscaled_) return;
  std::vector<at::Tensor> gradients;
  for_each_gradient(*context_.registry, parameters(),
                    [&](const at::Tensor& gradient) { gradients.push_back(gradient); });
  if (device_scaler_) device_scaler_->unscale(gradients, gradient_scale_.on(device_scaler_->device()));
  else scaler_->unscale(gradients, gradient_scale_.value());
  gradient_scale_ = {};
  unscaled_ = true;
}

bool PreparedOptimizer::gradients_are_finite() {
  unscale();
  bool found = scaler_->found_inf();
  // Gradients that are not sharded are the same on all ranks, so all find the same without a message.
  if (context_.group.size() > 1 && any_sharded(*context_.registry, parameters()))
    found = comm::any_rank(context_.group, "overflows of sharded gradients", found);
  scaler_->update(found, loss_scale_.value());
  return !found;
}

at::Tensor PreparedOptimizer::send_flag() {
  if (!device_scaler_) return flag_.send({}, {});
  unscale();
  const auto found = device_scaler_->found_inf();
  if (context_.group.size() > 1 && any_sharded(*context_.registry, parameters()))
    context_.group.internal("overflows of sharded gradients").all_reduce(found, comm::ReduceOp::max);
  device_scaler_->update(loss_scale_.on(device_scaler_->device()));
  return flag_.send(found, device_scaler_->state());
}

void PreparedOptimizer::wait_for_step() {
  if (!flag_.pending()) return;
  const auto known = flag_.known();
  skipped_ = known.skipped;
  if (std::exchange(flag_decides_, false) && skipped_) fused_.undo_step_count();
  const auto calls = flag_.take_calls();
  if (known.scaler) follow_scale(*known.scaler);  // before calls, which may throw
  for (const auto& call : calls) call();
  if (known.bad_norm) refuse_norm(known.bad_norm->first, known.bad_norm->second, "the last step, which was left out,");
}

/// After an error the scale of the device is not the host's.
void PreparedOptimizer::follow_scale(const GradScalerState& state) {
  try {
    scaler_->follow(state);
  } catch (const Error&) {
    device_scaler_.reset();
    throw;
  }
}

void PreparedOptimizer::drop_flags() {
  skip_next_ = false;
  if (const auto norm = flag_.drop()) refuse_norm(norm->first, norm->second, "this step, which zero_grad() gives up,");
}

bool PreparedOptimizer::step_was_skipped() {
  wait_for_step();
  return skipped_;
}

bool PreparedOptimizer::holds(const std::vector<at::Tensor>& asked) const {
  const auto own = parameters();
  return std::any_of(own.begin(), own.end(), [&](const at::Tensor& mine) {
    return std::any_of(asked.begin(), asked.end(), [&](const at::Tensor& one) { return one.is_same(mine); });
  });
}

void PreparedOptimizer::skip_if_holding(const std::vector<at::Tensor>& asked) {
  skip_next_ = skip_next_ || holds(asked);
}

bool PreparedOptimizer::skip_if_not_finite(const std::vector<at::Tensor>& asked, const at::Tensor& norm, double order,
                                           bool reports) {
  if (!holds(asked)) return false;
  flag_.skip_if(norm.isfinite().logical_not().to(at::kFloat).view({1}));
  if (reports) flag_.report(norm, order);
  return true;
}

std::optional<GradScalerState> PreparedOptimizer::scaler_state() {
  wait_for_step();
  return scaler_ ? std::optional(scaler_->state_dict()) : std::nullopt;
}

void PreparedOptimizer::load_scaler_state(const GradScalerState& state) {
  wait_for_step();
  scaler_->load_state_dict(state);
  device_scaler_.reset();
}

void PreparedOptimizer::require_same_device_operations() const {
  const auto reduces = [](const ModelUse& use) { return use.model->managed->gradient_sync(); };
  if (context_.accumulation->joined() || std::ranges::none_of(models_, reduces)) return;
  comm::require_same_device_operations(context_.group);
}

}  // namespace muster::runtime
