#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "muster/runtime/detail/joiner.h"
#include "muster/runtime/detail/leaf_operations.h"
#include "muster/runtime/detail/objects.h"
#include "muster/tree/detail/visit.h"
#include "muster/tree/once.h"

namespace muster::runtime {

/// Numbers of rows of the current batch, for values with one row per sample.
struct StepRows {
  bool equal = true;       ///< every rank has the same number of rows
  int64_t local = 0;       ///< on this rank
  int64_t local_real = 0;  ///< on this rank, without repeated ones
  int64_t real = 0;        ///< over all ranks, without repeated ones, which come last in rank order
};

/// Gathers a tensor. If it has step.local rows, it is per sample, and repeated rows are cut off; any other is gathered
/// whole.
at::Tensor gather_rows(const comm::Communicator& group, const at::Tensor& tensor, const std::optional<StepRows>& step);
/// Returns the rows of a per-sample tensor that are not repeated; any other tensor as it is, with at least one
/// dimension.
at::Tensor real_rows(const at::Tensor& tensor, const std::optional<StepRows>& step);

/// Visitor that gathers the leaves of a value of one batch in place.
struct MetricsGatherer {
  LeafOperations& operations;
  const std::optional<StepRows>& step;
  void operator()(at::Tensor& tensor) const { tensor = gather_rows(operations.next(), tensor, step); }
  template <tree::plain_list L>
  void operator()(L& list) const {
    const bool per_sample = step && std::ssize(list) == step->local;
    list = gather_object(operations.next(), list);
    if (per_sample && std::ssize(list) > step->real) list.resize(static_cast<size_t>(step->real));
  }
  template <class T>
  void operator()(Once<T>& value) const {
    const std::optional<StepRows> none;
    tree::visit(value.value, MetricsGatherer{operations, none});
  }
};

/// Removes the mark of once().
template <class T>
struct Unmarked {
  using type = T;
  static T&& of(T& value) { return std::move(value); }
};
template <class T>
struct Unmarked<Once<T>> {
  using type = T;
  static T&& of(Once<T>& value) { return std::move(value.value); }
};

/// Returns a single value bare, several as a tuple.
template <class... T>
auto unmarked(std::tuple<T...> values) {
  if constexpr (sizeof...(T) == 1) return typename Unmarked<T...>::type(Unmarked<T...>::of(std::get<0>(values)));
  else
    return std::apply(
        [](auto&... value) { return std::tuple<typename Unmarked<T>::type...>(Unmarked<T>::of(value)...); }, values);
}

template <class... T>
auto gather_for_metrics(const comm::Communicator& group, const std::optional<StepRows>& step, const T&... values) {
  static_assert(sizeof...(T) > 0, "gather_for_metrics takes at least one value");
  std::tuple<T...> all(values...);
  LeafOperations operations(group, "gather_for_metrics", tree::leaves_of</*with_lists=*/true>(all),
                            (tree::varies<T> || ...));
  tree::visit(all, MetricsGatherer{operations, step});
  return unmarked(std::move(all));
}

}  // namespace muster::runtime

namespace muster {

/// Collects values of an epoch on every rank and gathers them once. Each sample counts once, in the order of the data,
/// even if ranks have different numbers of batches.
/// Thread safety: one thread at a time.
template <class... T>
class MetricsCollector {
 public:
  MetricsCollector(comm::Communicator group, std::function<std::optional<runtime::StepRows>()> step)
      : group_(std::move(group)), step_(std::move(step)) {}

  /// Adds values of the current batch: tensors and lists with one row per sample, in any nesting. Values that do not
  /// belong to the batch have a type Once<V> and come back as V. Not collective.
  void add(const T&... values) {
    std::tuple<T...> row{values...};
    const auto step = step_();
    tree::visit(row, Keep{step});
    rows_.push_back(std::move(row));
  }

  /// Returns everything that all ranks have added since the last call, on the CPU, joined along the first dimension; a
  /// single value comes back bare. If no rank has added anything, lists and maps come back empty. Throws: UsageError
  /// (MU254), on every rank, if no rank has added anything and a value is a tensor.
  /// Collective.
  auto gathered() {
    auto all = in_order(runtime::gather_object<std::vector<std::tuple<T...>>>(group_, std::exchange(rows_, {})));
    if (all.empty()) {
      std::tuple<T...> nothing;
      tree::visit(nothing, runtime::NothingGathered());
      return runtime::unmarked(std::move(nothing));
    }
    runtime::Joiner<std::tuple<T...>> joiner(all);
    tree::visit(all.front(), joiner);
    return runtime::unmarked(std::move(all.front()));
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
    void operator()(Once<V>& value) const {
      const std::optional<runtime::StepRows> none;
      tree::visit(value.value, Keep{none});
    }
  };

  /// Orders by step, then by rank.
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
