#include "runtime/loss_scale.h"

#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>

namespace muster::runtime {
namespace {

constexpr device::SyncPoint kToHost{"optimizer: the flag of a step goes to pinned memory"};
constexpr device::SyncPoint kRead{"optimizer: the host reads the flag of the step before"};

}  // namespace

void FoundInf::skip_if(const at::Tensor& flag) { flag_ = flag_.defined() ? at::maximum(flag_, flag) : flag; }

void FoundInf::report(const at::Tensor& norm, double order) {
  const auto both = at::cat({norm.view({1}), at::full({1}, order, norm.options())});
  norm_ = norm_.defined() ? at::where(norm_[0].isfinite(), both, norm_) : both;
}

std::optional<std::pair<double, double>> FoundInf::drop() {
  flag_.reset();
  const auto norm = std::exchange(norm_, {});
  if (!norm.defined()) return std::nullopt;
  const auto both = norm.cpu();
  const auto* numbers = both.const_data_ptr<double>();
  return std::isfinite(numbers[0]) ? std::nullopt : std::optional(std::pair(numbers[0], numbers[1]));
}

at::Tensor FoundInf::send(const at::Tensor& found, const at::Tensor& scaler) {
  const at::NoGradGuard no_grad;
  if (found.defined()) skip_if(found);
  const auto flag = std::exchange(flag_, {}), norm = std::exchange(norm_, {});
  if (!flag.defined()) return flag;
  reports_ = norm.defined();
  scales_ = scaler.defined();
  std::vector<at::Tensor> numbers{flag.to(at::kDouble)};
  if (reports_) numbers.push_back(norm);
  if (scales_) numbers.push_back(scaler);
  if (!on_host_.defined()) on_host_ = at::empty({5}, at::TensorOptions(at::kDouble).pinned_memory(true));
  const auto together = at::cat(numbers);
  device::async_copy(kToHost, on_host_.narrow(0, 0, together.numel()), together);
  sent_ = device::record(flag.device());
  pending_ = true;
  return flag;
}

FoundInf::Known FoundInf::known() {
  device::host_wait(kRead, sent_);
  pending_ = false;
  sent_.reset();
  const auto* number = on_host_.const_data_ptr<double>();
  Known known;
  known.skipped = *number++ > 0;
  if (reports_ && !std::isfinite(*number)) known.bad_norm = std::pair(number[0], number[1]);
  if (reports_) number += 2;
  if (scales_) known.scaler = {.growth_tracker = static_cast<int64_t>(number[0]), .scale = number[1]};
  return known;
}

}  // namespace muster::runtime
