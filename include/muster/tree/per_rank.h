#pragma once

#include <type_traits>
#include <utility>

namespace muster {

/// A value that is not per sample: equal on all ranks, or one value per rank, such as a confusion matrix.
template <class T>
struct PerRank {
  T value;
};

/// Marks `value` as not per sample, so that gather_for_metrics() and collectors never cut it, whatever its length.
template <class T>
PerRank<std::remove_cvref_t<T>> per_rank(T&& value) {
  return {std::forward<T>(value)};
}

namespace tree {

namespace detail {
template <class T>
inline constexpr bool is_per_rank = false;
template <class T>
inline constexpr bool is_per_rank<PerRank<T>> = true;
}  // namespace detail

template <class T>
concept marked_per_rank = detail::is_per_rank<std::remove_cvref_t<T>>;

}  // namespace tree
}  // namespace muster
