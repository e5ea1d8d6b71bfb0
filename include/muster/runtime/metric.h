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

/// One part of what a metric keeps. Over ranks it is put together by `reduce`: sum, min or max.
struct MetricState {
  at::Tensor initial;
  comm::ReduceOp reduce = comm::ReduceOp::sum;
};

/// Base class of values that are gathered over the batches of an epoch and over ranks. A metric of a program's own
/// names its states in the constructor and has two functions: an update() with any parameters, which changes the
/// states, and compute(). muster::compute_over_ranks() gives the value of all ranks; TrainerModule::log() takes a
/// metric, too. A batch may repeat samples to fill up the last step: give update() the first
/// loader.local_real_samples() rows only. Thread safety: one thread at a time.
class Metric {
 public:
  virtual ~Metric() = default;
  /// The value of the states. Called under torch::NoGradGuard.
  virtual at::Tensor compute() const = 0;
  /// Gives the states their initial values.
  void reset();
  /// The value of the last epoch that ended, of all ranks; undefined before.
  const at::Tensor& value() const noexcept { return value_; }

  /// The states, as a checkpoint of the program's may save them.
  State state_dict() const;
  /// Throws: CheckpointError (MU208, MU209) for a state of another class of metrics.
  void load_state_dict(const State& state);
  /// Adds such states to these, as those of another rank are added. Throws: as load_state_dict().
  void add_state_dict(const State& state);
  /// Whether load_state_dict() was called since the states had their initial values.
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

/// Ends an epoch of several metrics, for all ranks in one message.
class MetricReduction {
 public:
  /// Afterwards each metric's value() is that of all ranks, and its states are initial ones. `label` says whose metrics
  /// these are; ranks with others get a CommError (MU050). Collective.
  static void run(const comm::Communicator& group, const std::string& label, const std::vector<Metric*>& metrics);

  /// The values that run() would give; the metrics stay as they are. Collective.
  static std::vector<at::Tensor> values_so_far(const comm::Communicator& group, const std::string& label,
                                               const std::vector<Metric*>& metrics);

  /// What run() does without communication: the value of this rank.
  static void run_here(const std::vector<Metric*>& metrics);
};

namespace runtime {
/// Type-erased compute_over_ranks().
void end_metrics(const Runtime& runtime, const std::vector<Metric*>& metrics);
}  // namespace runtime

/// The values of these metrics over all ranks, in one message; the metrics then begin anew.
///   auto [accuracy, loss] = muster::compute_over_ranks(accelerator, accuracy_metric, loss_metric);
/// Collective: with the same metrics on every rank.
template <std::derived_from<Metric>... M>
std::array<at::Tensor, sizeof...(M)> compute_over_ranks(const Runtime& runtime, M&... metrics) {
  runtime::end_metrics(runtime, {&metrics...});
  return {metrics.value()...};
}

/// The share of rows whose greatest column is the label; NaN without rows.
class Accuracy final : public Metric {
 public:
  Accuracy();
  /// `scores`: one row per sample and one column per class. Throws: UsageError (MU459) for other shapes.
  void update(const at::Tensor& scores, const at::Tensor& labels);
  at::Tensor compute() const override;
};

/// The mean of all values, weighted; NaN without weight.
class MeanMetric final : public Metric {
 public:
  MeanMetric();
  /// Each element of `values` counts by `weight`: give a batch's mean with the batch's size.
  void update(const at::Tensor& values, double weight = 1);
  at::Tensor compute() const override;
};

/// How many samples of each class (row) were taken for which class (column): whole numbers.
class ConfusionMatrix final : public Metric {
 public:
  /// Throws: UsageError (MU459) for less than one class.
  explicit ConfusionMatrix(int64_t classes);
  /// `predicted`: classes, or one row of scores per sample. Throws: UsageError (MU459) for other shapes, or for a class
  /// that is not there.
  void update(const at::Tensor& predicted, const at::Tensor& labels);
  at::Tensor compute() const override;

 private:
  int64_t classes_;
};

}  // namespace muster
