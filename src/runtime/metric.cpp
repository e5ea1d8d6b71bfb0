#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>

#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/runtime/detail/state_access.h"
#include "muster/runtime/metrics.h"
#include "runtime_state.h"

namespace muster {
namespace {

constexpr auto kSum = comm::ReduceOp::sum, kMin = comm::ReduceOp::min, kMax = comm::ReduceOp::max;

at::Tensor combined(const at::Tensor& of_ranks, comm::ReduceOp op) {
  if (op == kSum) return of_ranks.sum(0);
  return op == kMin ? of_ranks.amin(0) : of_ranks.amax(0);
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

}  // namespace muster
