#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/runtime/detail/values.h"
#include "muster/tree/detail/visit.h"
#include "muster/tree/per_rank.h"

namespace muster::runtime {

/// Numbers of rows of the current batch, for values with one row per sample.
struct StepRows {
  bool equal = true;       ///< whether every rank has equally many rows
  int64_t local = 0;       ///< rows on this rank
  int64_t local_real = 0;  ///< rows on this rank, without repeated ones
  int64_t real = 0;        ///< rows on all ranks, without repeated ones, which come last in rank order
};

class RuntimeState;

/// The rows of the current batch of the loader in use; nullopt if no loader is in use.
std::optional<StepRows> step_rows(const RuntimeState& state);

/// Gathers a tensor. If it has step.local rows, it is per sample, and repeated rows are cut off; any other tensor is
/// gathered whole.
at::Tensor gather_rows(const comm::Communicator& group, const at::Tensor& tensor, const std::optional<StepRows>& step);
/// Returns the rows of a per-sample tensor that are not repeated; any other tensor unchanged, with at least one
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
  void operator()(PerRank<T>& value) const {
    const std::optional<StepRows> none;
    tree::visit(value.value, MetricsGatherer{operations, none});
  }
};

/// Removes the mark of per_rank().
template <class T>
auto unmarked(T& value) {
  if constexpr (tree::marked_per_rank<T>) return std::move(value.value);
  else return std::move(value);
}

/// Returns a single value bare, several values as a tuple.
template <class... T>
auto unmarked_values(std::tuple<T...> values) {
  if constexpr (sizeof...(T) == 1) return unmarked(std::get<0>(values));
  else
    return std::apply([](auto&... value) { return std::tuple<decltype(unmarked(value))...>(unmarked(value)...); },
                      values);
}

template <class... T>
auto gather_for_metrics(const comm::Communicator& group, const std::optional<StepRows>& step, const T&... values) {
  static_assert(sizeof...(T) > 0, "gather_for_metrics takes at least one value");
  std::tuple<T...> all(values...);
  LeafOperations operations(group, "gather_for_metrics", tree::leaves_of</*with_lists=*/true>(all),
                            (tree::varies<T> || ...));
  tree::visit(all, MetricsGatherer{operations, step});
  operations.finish();
  return unmarked_values(std::move(all));
}

}  // namespace muster::runtime
