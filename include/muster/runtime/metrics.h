#pragma once

#include <any>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "muster/runtime/detail/gather_for_metrics.h"
#include "muster/runtime/detail/state_access.h"
#include "muster/runtime/detail/values.h"
#include "muster/tree/detail/visit.h"
#include "muster/tree/per_rank.h"
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

namespace runtime {

/// Concatenates along the first dimension. Returns an undefined tensor if any of them is undefined.
at::Tensor join_rows(const std::vector<at::Tensor>& parts);

/// Joins several values of the same structure, leaf by leaf, into the first value.
template <class T>
class Joiner {
 public:
  explicit Joiner(std::vector<T>& values) {
    for (auto& value : values) tree::visit(value, Pointers{leaves_.emplace_back()});
  }
  void operator()(at::Tensor& tensor) {
    std::vector<at::Tensor> parts;
    for (auto* part : next_leaves<at::Tensor>()) parts.push_back(*part);
    tensor = join_rows(parts);
  }
  template <tree::plain_list L>
  void operator()(L& list) {
    for (auto* part : next_leaves<L>())
      if (part != &list) list.insert(list.end(), part->begin(), part->end());
  }

 private:
  /// Lists the leaves of one value: pointers to them.
  struct Pointers {
    std::vector<std::any>& leaves;
    void operator()(at::Tensor& tensor) const { leaves.emplace_back(&tensor); }
    template <tree::plain_list L>
    void operator()(L& list) const {
      leaves.emplace_back(&list);
    }
  };
  template <class L>
  std::vector<L*> next_leaves() {
    std::vector<L*> found;
    for (auto& leaves : leaves_)
      if (auto* leaf = leaf_ < leaves.size() ? std::any_cast<L*>(&leaves[leaf_]) : nullptr) found.push_back(*leaf);
    ++leaf_;
    return found;
  }

  std::vector<std::vector<std::any>> leaves_;  // of each value, in the order of visit()
  std::size_t leaf_ = 0;
};

/// Visitor for a value to which no rank has added anything. Throws: UsageError (MU254) for a tensor, which has no empty
/// form.
struct NothingGathered {
  [[noreturn]] void operator()(at::Tensor& tensor) const;
  template <tree::plain_list L>
  void operator()(L&) const {}
  template <class T>
  void operator()(PerRank<T>& value) const {
    tree::visit(value.value, *this);
  }
};

}  // namespace runtime

/// Collects values of an epoch on every rank and gathers them once. Each sample counts once, in the order of the data,
/// even if ranks have different numbers of batches.
/// Thread safety: one thread at a time.
template <class... T>
class MetricsCollector {
 public:
  MetricsCollector(comm::Communicator group, std::function<std::optional<runtime::StepRows>()> step)
      : group_(std::move(group)), step_(std::move(step)) {}

  /// Adds values of the current batch: tensors and lists with one row per sample, in any nesting. Values that do not
  /// belong to the batch have a type PerRank<V>, and gathered() returns them as V. Not collective.
  void add(const T&... values) {
    std::tuple<T...> row{values...};
    const auto step = step_();
    tree::visit(row, Keep{step});
    rows_.push_back(std::move(row));
  }

  /// Returns everything that all ranks have added since the last call, on the CPU, joined along the first dimension: a
  /// tuple, or a single value bare. If no rank has added anything, lists and maps are empty. Throws: UsageError
  /// (MU254), on every rank, if no rank has added anything and a value is a tensor.
  /// Collective.
  auto gathered() {
    auto all = in_order(runtime::gather_object<std::vector<std::tuple<T...>>>(group_, std::exchange(rows_, {})));
    if (all.empty()) {
      std::tuple<T...> nothing;
      tree::visit(nothing, runtime::NothingGathered());
      return runtime::unmarked_values(std::move(nothing));
    }
    runtime::Joiner<std::tuple<T...>> joiner(all);
    tree::visit(all.front(), joiner);
    return runtime::unmarked_values(std::move(all.front()));
  }

 private:
  struct Keep {
    const std::optional<runtime::StepRows>& step;
    void operator()(at::Tensor& tensor) const { tensor = runtime::real_rows(tensor, step); }
    template <tree::plain_list L>
    void operator()(L& list) const {
      if (step && std::ssize(list) == step->local) list.resize(static_cast<size_t>(step->local_real));
    }
    template <class V>
    void operator()(PerRank<V>& value) const {
      const std::optional<runtime::StepRows> none;
      tree::visit(value.value, Keep{none});
    }
  };

  /// Returns the rows ordered by step, then by rank.
  static std::vector<std::tuple<T...>> in_order(std::vector<std::vector<std::tuple<T...>>> by_rank) {
    std::vector<std::tuple<T...>> all;
    bool more = true;
    for (size_t step = 0; std::exchange(more, false); ++step)
      for (auto& rank : by_rank)
        if (step < rank.size()) {
          all.push_back(std::move(rank[step]));
          more = true;
        }
    return all;
  }

  comm::Communicator group_;
  std::function<std::optional<runtime::StepRows>()> step_;
  std::vector<std::tuple<T...>> rows_;
};

}  // namespace muster
