#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "muster/runtime/detail/gather_for_metrics.h"
#include "muster/runtime/detail/joiner.h"
#include "muster/runtime/detail/objects.h"
#include "muster/runtime/metric.h"
#include "muster/tree/detail/visit.h"
#include "muster/tree/per_rank.h"

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
