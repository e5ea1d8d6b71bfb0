#include "runtime/step_decision.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>

#include "precision/device_grad_scaler.h"

namespace muster::runtime {
namespace {

constexpr device::SyncPoint kToHost{"optimizer: the flag of a step goes to pinned memory"};
constexpr device::SyncPoint kRead{"optimizer: the host reads the flag of the step before"};

}  // namespace

void StepDecision::skip_if(const at::Tensor& flag) { flag_ = flag_.defined() ? at::maximum(flag_, flag) : flag; }

void StepDecision::report(const at::Tensor& norm, double order) {
  const auto both = at::cat({norm.view({1}), at::full({1}, order, norm.options())});
  norm_ = norm_.defined() ? at::where(norm_[0].isfinite(), both, norm_) : both;
}

bool StepDecision::skip_is_requested() const { return skip_next_ || (flag_.defined() && flag_.item<float>() > 0); }

std::optional<std::pair<double, double>> StepDecision::drop() {
  const auto norm = norm_;
  forget();
  if (!norm.defined()) return std::nullopt;
  const auto both = norm.cpu();
  const auto* numbers = both.const_data_ptr<double>();
  return std::isfinite(numbers[0]) ? std::nullopt : std::optional(std::pair(numbers[0], numbers[1]));
}

void StepDecision::forget() {
  skip_next_ = false;
  flag_.reset();
  norm_.reset();
}

at::Tensor StepDecision::send(const at::Tensor& found, const at::Tensor& scaler) {
  const at::NoGradGuard no_grad;
  if (found.defined()) skip_if(found);
  const auto flag = std::exchange(flag_, {}), norm = std::exchange(norm_, {});
  if (!flag.defined()) return flag;
  std::vector<at::Tensor> numbers{flag.to(at::kDouble)};
  norm_at_ = norm.defined() ? 1 : 0;
  scaler_at_ = scaler.defined() ? 1 + 2 * norm_at_ : 0;
  if (norm.defined()) numbers.push_back(norm);
  if (scaler.defined()) numbers.push_back(scaler);
  if (!on_host_.defined()) on_host_ = at::empty({5}, at::TensorOptions(at::kDouble).pinned_memory(true));
  const auto together = at::cat(numbers);
  device::async_copy(kToHost, on_host_.narrow(0, 0, together.numel()), together);
  sent_ = device::record(flag.device());
  state_ = StepState::undecided;
  return flag;
}

StepDecision::Known StepDecision::wait() {
  device::host_wait(kRead, sent_);
  const auto* number = on_host_.const_data_ptr<double>();
  Known known;
  known.skipped = number[0] > 0;
  known.undone = known.skipped && state_ == StepState::updated;
  if (norm_at_ > 0 && !std::isfinite(number[norm_at_]))
    known.bad_norm = std::pair(number[norm_at_], number[norm_at_ + 1]);
  if (scaler_at_ > 0) known.scaler = precision::DeviceGradScaler::read(number + scaler_at_);
  decide(known.skipped);
  sent_.reset();
  return known;
}

}  // namespace muster::runtime
