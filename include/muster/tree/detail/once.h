#pragma once

#include <type_traits>
#include <utility>

namespace muster {

/// A value that is not per sample: the same numbers on every rank, or one set per rank, such as a confusion matrix.
template <class T>
struct Once {
  T value;
};

/// Marks `value` as not per sample, for gather_for_metrics() and collectors: they cut nothing off, whatever its length.
template <class T>
Once<std::remove_cvref_t<T>> once(T&& value) {
  return {std::forward<T>(value)};
}

namespace tree {

namespace detail {
template <class T>
inline constexpr bool is_once = false;
template <class T>
inline constexpr bool is_once<Once<T>> = true;
}  // namespace detail

template <class T>
concept marked_once = detail::is_once<std::remove_cvref_t<T>>;

}  // namespace tree
}  // namespace muster
