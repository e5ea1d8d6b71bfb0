#pragma once

#include <cstddef>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <utility>

namespace muster::tree {

/// A plain struct: no constructors, no private members.
template <class T>
concept aggregate = std::is_aggregate_v<std::remove_cvref_t<T>> && std::is_class_v<std::remove_cvref_t<T>>;

namespace detail {
/// Converts to any type, so that a braced list of n objects initialises any struct of at least n fields. Never called.
struct Anything {
  template <class T>
  operator T() const {
    std::abort();  // clang requires a body for types of unnamed namespaces
  }
};

template <class T, std::size_t... I>
concept braces_take = requires { T{((void)I, Anything{})...}; };

template <class T, std::size_t N>
consteval bool takes() {
  return
      []<std::size_t... I>(std::index_sequence<I...>) { return braces_take<T, I...>; }(std::make_index_sequence<N>());
}

template <class T, std::size_t N>
consteval std::size_t count_from() {
  if constexpr (N == 0) return 0;
  else if constexpr (takes<T, N>()) return N;
  else return count_from<T, N - 1>();
}
}  // namespace detail

/// The number of fields of a plain struct; 9 means nine or more.
template <aggregate T>
inline constexpr std::size_t field_count = detail::count_from<std::remove_cvref_t<T>, 9>();

/// References to the fields of a plain struct, as a tuple.
/// Requires: one to eight fields and no base class; other structs need tensors_of().
template <class T>
constexpr auto fields(T& t) {
  constexpr auto n = field_count<std::remove_cv_t<T>>;
  static_assert(
      n > 0 && n <= 8,
      "muster sees structs of one to eight fields: add `friend auto tensors_of(T& t) { return std::tie(t.x, t.y); }`");
  if constexpr (n == 1) {
    auto& [a] = t;
    return std::tie(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = t;
    return std::tie(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = t;
    return std::tie(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = t;
    return std::tie(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = t;
    return std::tie(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, f] = t;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, f, g] = t;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (n == 8) {
    auto& [a, b, c, d, e, f, g, h] = t;
    return std::tie(a, b, c, d, e, f, g, h);
  } else {
    return std::tuple<>();
  }
}

}  // namespace muster::tree
