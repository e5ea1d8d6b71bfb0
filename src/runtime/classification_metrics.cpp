#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/listing.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/runtime/metrics.h"
#include "runtime/sum_dtype.h"

namespace muster {
namespace {

/// The class of each sample, as a 1-D tensor.
at::Tensor classes_in(const at::Tensor& predicted, const at::Tensor& labels, const char* metric) {
  const bool scores = predicted.dim() == labels.dim() + 1 && predicted.size(-1) > 0;
  auto classes = scores ? predicted.argmax(-1) : predicted;
  if (labels.dim() == 1 && classes.sizes() == labels.sizes()) return classes;
  throw UsageError("MU459",
                   formatted("{} got predictions of shape {} and labels of shape {}; give one label per sample, "
                             "and one row of scores per sample",
                             metric, shape_text(predicted.sizes()), shape_text(labels.sizes())));
}

/// The sum, on the device of the new values. The device's kernel takes a state that is still on the host as a scalar,
/// so the host does not wait for a copy.
at::Tensor added(const at::Tensor& state, const at::Tensor& more) { return more + state.to(more.scalar_type()); }

/// The division is between tensors: a device may replace a number by its reciprocal, but not a tensor.
at::Tensor quotient(const at::Tensor& sum, const at::Tensor& count) {
  const auto wide = sum.to(runtime::sum_dtype(sum.device()));
  return wide / at::full_like(wide, count.item<double>());
}

}  // namespace

Accuracy::Accuracy() : Metric({{at::zeros({}, at::kLong)}, {at::zeros({}, at::kLong)}}) {}

void Accuracy::update(const at::Tensor& scores, const at::Tensor& labels) {
  const at::NoGradGuard no_grad;
  const auto right = classes_in(scores, labels, "Accuracy").eq(labels).sum();
  state(0) = added(state(0), right);
  state(1) = state(1) + labels.numel();
}

at::Tensor Accuracy::compute() const { return quotient(state(0), state(1)); }

MeanMetric::MeanMetric() : Metric({{at::zeros({}, at::kDouble)}, {at::zeros({}, at::kDouble)}}) {}

void MeanMetric::update(const at::Tensor& values, double weight) {
  const at::NoGradGuard no_grad;
  const auto sum = values.detach().to(runtime::sum_dtype(values.device())).sum() * weight;
  state(0) = added(state(0), sum);
  state(1) = state(1) + weight * static_cast<double>(values.numel());
}

at::Tensor MeanMetric::compute() const { return quotient(state(0), state(1)); }

ConfusionMatrix::ConfusionMatrix(int64_t classes)
    : Metric({{at::zeros({std::max<int64_t>(classes, 1), std::max<int64_t>(classes, 1)}, at::kLong)}}),
      classes_(classes) {
  if (classes < 1) throw UsageError("MU459", formatted("a ConfusionMatrix of {} classes; give at least 1", classes));
}

void ConfusionMatrix::update(const at::Tensor& predicted, const at::Tensor& labels) {
  const at::NoGradGuard no_grad;
  const auto classes = classes_in(predicted, labels, "ConfusionMatrix").to(at::kCPU, at::kLong);
  const auto rows = labels.to(at::kCPU, at::kLong);
  for (const auto& one : {classes, rows})
    if (one.numel() > 0 && (one.min().item<int64_t>() < 0 || one.max().item<int64_t>() >= classes_))
      throw UsageError("MU459", formatted("a ConfusionMatrix of {} classes got classes from {} to {}", classes_,
                                          one.min().item<int64_t>(), one.max().item<int64_t>()));
  const auto counts = (rows * classes_ + classes).bincount({}, classes_ * classes_);
  state(0) = state(0) + counts.reshape({classes_, classes_});
}

at::Tensor ConfusionMatrix::compute() const { return state(0).clone(); }

}  // namespace muster
