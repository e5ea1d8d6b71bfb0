#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "muster/tree/detail/visit.h"

namespace muster {

/// How a value is split over ranks.
struct SplitOptions {
  /// Ranks with fewer elements get the last element once more, so that all ranks have equally many.
  bool apply_padding = false;
};

namespace runtime {

/// One rank's part: elements [begin, begin + count), and `repeated` copies of the last element of the whole list.
struct SplitPart {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t repeated = 0;
};

/// Returns a contiguous part; if `length` is not divisible by `world`, the first ranks get one element more.
SplitPart split_part(int64_t length, int rank, int world, const SplitOptions& options);
at::Tensor split_tensor(const at::Tensor& tensor, const SplitPart& part);
/// Throws: UsageError (MU184) if `length` differs from that of an earlier call, kept in `known`.
void check_length(std::optional<int64_t>& known, int64_t length);

/// Calls f on every tensor that has dimensions and on every list, also inside maps, tuples and structs.
template <class T, class F>
void visit_lists(T& value, F&& f) {
  using V = std::remove_cv_t<T>;
  if constexpr (tree::tensor<V>) {
    if (value.defined() && value.dim() > 0) f(value);
  } else if constexpr (tree::plain_leaf<V>) {
  } else if constexpr (tree::map_like<V>) {
    for (auto& entry : value) visit_lists(entry.second, f);
  } else if constexpr (tree::list_like<V>) {
    f(value);
  } else if constexpr (tree::tuple_like<V>) {
    std::apply([&](auto&... part) { (visit_lists(part, f), ...); }, value);
  } else if constexpr (tree::aggregate<V>) {
    auto parts = tree::fields(value);  // all of them, also those that tensors_of() leaves out
    std::apply([&](auto&... part) { (visit_lists(part, f), ...); }, parts);
  } else {
    static_assert(tree::aggregate<V>, "muster splits lists, tensors, and maps, tuples and structs of them");
  }
}

template <class L>
void split_one(L& list, const SplitPart& part) {
  if constexpr (tree::tensor<L>) {
    list = split_tensor(list, part);
  } else {
    L result;
    for (int64_t i = 0; i < part.count; ++i) result.push_back(list[static_cast<size_t>(part.begin + i)]);
    for (int64_t i = 0; i < part.repeated; ++i) result.push_back(list.back());
    list = std::move(result);
  }
}

template <class T>
T split_between_processes(int rank, int world, T value, const SplitOptions& options) {
  std::optional<int64_t> length;
  visit_lists(value, [&](const auto& list) {
    if constexpr (tree::tensor<decltype(list)>) check_length(length, list.size(0));
    else check_length(length, static_cast<int64_t>(std::ranges::size(list)));
  });
  if (world == 1) return value;
  const auto part = split_part(length.value_or(0), rank, world, options);
  visit_lists(value, [&](auto& list) { split_one(list, part); });
  return value;
}

}  // namespace runtime
}  // namespace muster
