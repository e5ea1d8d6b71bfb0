#include "muster/runtime/metrics.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>

#include "base/text.h"
#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "runtime/sum_dtype.h"
#include "runtime_state.h"

namespace muster {
namespace {

constexpr auto kSum = comm::ReduceOp::sum, kMin = comm::ReduceOp::min, kMax = comm::ReduceOp::max;

at::Tensor combined(const at::Tensor& of_ranks, comm::ReduceOp op) {
  if (op == kSum) return of_ranks.sum(0);
  return op == kMin ? of_ranks.amin(0) : of_ranks.amax(0);
}

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

Metric::Metric(std::vector<MetricState> states) : states_(std::move(states)) {
  for (const auto& [initial, reduce] : states_) {
    if (!initial.defined())
      throw UsageError("MU458", "a state of a metric has no initial value; give each one a tensor, such as zeros({})");
    if (reduce != kSum && reduce != kMin && reduce != kMax)
      throw UsageError("MU458",
                       "a state of a metric is to be reduced by mean or product; keep sums, minima and maxima, and "
                       "divide in compute()");
  }
  reset();
}

void Metric::reset() {
  const c10::InferenceMode no_inference(false);  // training may change the states in place later
  values_.clear();
  for (const auto& one : states_) values_.push_back(one.initial.clone());
  loaded_ = false;
}

State Metric::state_dict() const {
  State::List values(values_.begin(), values_.end());
  return State::Map{{"states", std::move(values)}};
}

std::vector<at::Tensor> Metric::read(const State& state) const {
  const auto& saved = state.at("states").list();
  bool fits = saved.size() == values_.size();
  for (std::size_t i = 0; fits && i < saved.size(); ++i) fits = saved[i].tensor().sizes() == values_[i].sizes();
  if (!fits)
    throw CheckpointError("MU209",
                          "the saved states of a metric do not fit this one: other classes, or another number "
                          "of classes, have other states");
  const c10::InferenceMode no_inference(false);
  std::vector<at::Tensor> values;
  for (const auto& one : saved) values.push_back(one.tensor().clone());
  return values;
}

void Metric::load_state_dict(const State& state) {
  values_ = read(state);
  loaded_ = true;
}

void Metric::add_state_dict(const State& state) {
  const at::NoGradGuard no_grad;
  auto values = read(state);
  for (std::size_t i = 0; i < values.size(); ++i)
    values_[i] = combined(at::stack({values[i].to(values_[i].options()), values_[i]}), states_[i].reduce)
                     .to(values_[i].scalar_type());
}

void MetricReduction::run_here(const std::vector<Metric*>& metrics) {
  const at::NoGradGuard no_grad;
  for (auto* metric : metrics) {
    metric->value_ = metric->compute();
    metric->reset();
  }
}

std::vector<at::Tensor> MetricReduction::values_so_far(const comm::Communicator& group, const std::string& label,
                                                       const std::vector<Metric*>& metrics) {
  struct Kept {
    std::vector<at::Tensor> values;
    at::Tensor value;
    bool loaded;
  };
  std::vector<Kept> kept;
  for (const auto* metric : metrics) kept.push_back({metric->values_, metric->value_, metric->loaded_});
  const auto put_back = c10::make_scope_exit([&] {
    for (std::size_t i = 0; i < metrics.size(); ++i) {
      metrics[i]->values_ = kept[i].values;
      metrics[i]->value_ = kept[i].value;
      metrics[i]->loaded_ = kept[i].loaded;
    }
  });
  run(group, label, metrics);
  std::vector<at::Tensor> values;
  for (const auto* metric : metrics) values.push_back(metric->value_);
  return values;
}

void MetricReduction::run(const comm::Communicator& group, const std::string& label,
                          const std::vector<Metric*>& metrics) {
  if (group.size() == 1 || metrics.empty()) return run_here(metrics);
  comm::require_same_device_operations(group);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  bool only_sums = true;
  for (const auto* metric : metrics)
    for (std::size_t i = 0; i < metric->states_.size(); ++i) {
      parts.push_back(metric->values_[i].to(at::kCPU, at::kDouble).reshape({-1}));
      only_sums = only_sums && metric->states_[i].reduce == kSum;
    }
  const auto mine = at::cat(parts);
  const auto messages = group.internal(label);
  if (only_sums) messages.all_reduce(mine, kSum);
  const auto of_ranks = only_sums ? mine.unsqueeze(0) : messages.all_gather(mine);
  int64_t begin = 0;
  for (auto* metric : metrics)
    for (std::size_t i = 0; i < metric->states_.size(); ++i) {
      auto& value = metric->values_[i];
      const auto all = combined(of_ranks.narrow(1, begin, value.numel()), metric->states_[i].reduce);
      begin += value.numel();
      value = all.reshape(value.sizes()).to(value.options());
    }
  run_here(metrics);
}

void runtime::end_metrics(const Runtime& runtime, const std::vector<Metric*>& metrics) {
  MetricReduction::run(runtime::state_of(runtime).placement().group(), "metrics", metrics);
}

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

namespace muster::runtime {
namespace {

bool per_sample(const at::Tensor& tensor, const std::optional<StepRows>& step) {
  return step && tensor.dim() > 0 && tensor.size(0) == step->local;
}

at::Tensor with_rows(const at::Tensor& tensor) { return tensor.dim() == 0 ? tensor.reshape({1}) : tensor; }

}  // namespace

at::Tensor gather_rows(const comm::Communicator& group, const at::Tensor& tensor, const std::optional<StepRows>& step) {
  const bool cut = per_sample(tensor, step);
  const auto all =
      !step || step->equal ? gather_tensor(group, tensor) : at::cat(group.all_gatherv(with_rows(tensor.detach())));
  return cut && all.size(0) > step->real ? all.narrow(0, 0, step->real) : all;
}

at::Tensor real_rows(const at::Tensor& tensor, const std::optional<StepRows>& step) {
  if (!tensor.defined()) return tensor;
  return per_sample(tensor, step) ? tensor.detach().narrow(0, 0, step->local_real) : with_rows(tensor.detach());
}

at::Tensor join_rows(const std::vector<at::Tensor>& parts) {
  for (const auto& part : parts)
    if (!part.defined()) return {};
  return at::cat(parts);
}

void NothingGathered::operator()(at::Tensor&) const {
  throw UsageError("MU254",
                   "gathered() of a collector was called where no rank has added anything since the last call, so it "
                   "has no tensor to give: "
                   "add() values first, or leave gathered() out where a loader has no batches");
}

}  // namespace muster::runtime
