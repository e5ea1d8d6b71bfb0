#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "muster/runtime/detail/state_access.h"
#include "muster/tree/state.h"

namespace muster {

/// One state of a metric. `reduce` (sum, min or max) combines the states of all ranks.
struct MetricState {
  at::Tensor initial;
  comm::ReduceOp reduce = comm::ReduceOp::sum;
};

/// Base class of metrics: values that are accumulated over the batches of an epoch and over ranks. A custom metric
/// declares its states in the constructor and has two functions: an update() with any parameters, which changes the
/// states, and compute(). muster::compute_over_ranks() returns the value over all ranks; TrainerModule::log() also
/// takes a metric. A batch may repeat samples to fill up the last step, so pass only the first
/// loader.local_real_samples() rows to update(). See docs/decisions/0105-metric-objects.md. Thread safety: one thread
/// at a time.
class Metric {
 public:
  virtual ~Metric() = default;
  /// Computes the metric from the states. Called under torch::NoGradGuard.
  virtual at::Tensor compute() const = 0;
  /// Resets the states to their initial values.
  void reset();
  /// The value of the last completed epoch, over all ranks; undefined before.
  const at::Tensor& value() const noexcept { return value_; }

  /// The states, for a checkpoint that the program writes.
  State state_dict() const;
  /// Throws: CheckpointError (MU208, MU209) for a state of another class of metrics.
  void load_state_dict(const State& state);
  /// Combines saved states with the current ones, like states of another rank. Throws: as load_state_dict().
  void add_state_dict(const State& state);
  /// Whether load_state_dict() was called since the last reset().
  bool loaded() const noexcept { return loaded_; }

 protected:
  /// Throws: UsageError (MU458) for an undefined tensor, or a reduction by mean or product.
  explicit Metric(std::vector<MetricState> states);
  Metric(const Metric&) = default;
  Metric& operator=(const Metric&) = default;
  at::Tensor& state(std::size_t index) { return values_.at(index); }
  const at::Tensor& state(std::size_t index) const { return values_.at(index); }

 private:
  friend class MetricReduction;
  std::vector<at::Tensor> read(const State& state) const;

  std::vector<MetricState> states_;
  std::vector<at::Tensor> values_;
  at::Tensor value_;
  bool loaded_ = false;
};

/// Ends an epoch of several metrics over all ranks, in one message.
class MetricReduction {
 public:
  /// Sets each metric's value() to the value over all ranks, and resets its states. `label` identifies the metrics;
  /// ranks with different metrics get a CommError (MU050). Collective.
  static void run(const comm::Communicator& group, const std::string& label, const std::vector<Metric*>& metrics);

  /// The values that run() would compute, without changing the metrics. Collective.
  static std::vector<at::Tensor> values_so_far(const comm::Communicator& group, const std::string& label,
                                               const std::vector<Metric*>& metrics);

  /// Does what run() does, without communication: value() becomes the value of this rank.
  static void run_here(const std::vector<Metric*>& metrics);
};

namespace runtime {
/// Type-erased compute_over_ranks().
void end_metrics(const Runtime& runtime, const std::vector<Metric*>& metrics);
}  // namespace runtime

/// Returns the values of these metrics over all ranks, in one message, and resets the metrics.
///   auto [accuracy, loss] = muster::compute_over_ranks(accelerator, accuracy_metric, loss_metric);
/// Collective: with equal metrics on every rank.
template <std::derived_from<Metric>... M>
std::array<at::Tensor, sizeof...(M)> compute_over_ranks(const Runtime& runtime, M&... metrics) {
  runtime::end_metrics(runtime, {&metrics...});
  return {metrics.value()...};
}

/// The fraction of rows whose greatest column is the label; NaN without rows.
class Accuracy final : public Metric {
 public:
  Accuracy();
  /// `scores`: one row per sample and one column per class. Throws: UsageError (MU459) for other shapes.
  void update(const at::Tensor& scores, const at::Tensor& labels);
  at::Tensor compute() const override;
};

/// The weighted mean of all values; NaN if the weights sum to 0.
class MeanMetric final : public Metric {
 public:
  MeanMetric();
  /// Adds each element of `values` with `weight`: pass the mean of a batch with the batch's size.
  void update(const at::Tensor& values, double weight = 1);
  at::Tensor compute() const override;
};

/// The number of samples of each class (row) that were predicted as each class (column): whole numbers.
class ConfusionMatrix final : public Metric {
 public:
  /// Throws: UsageError (MU459) for less than one class.
  explicit ConfusionMatrix(int64_t classes);
  /// `predicted`: classes, or one row of scores per sample. Throws: UsageError (MU459) for other shapes, or for a class
  /// out of range.
  void update(const at::Tensor& predicted, const at::Tensor& labels);
  at::Tensor compute() const override;

 private:
  int64_t classes_;
};

}  // namespace muster
