#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "muster/tree/detail/pack.h"

namespace muster::tree {

template <class T>
consteval bool can_be_sent();

namespace detail {
/// Whether unpack() can create a T.
template <class T>
consteval bool can_be_made() {
  return std::default_initializable<std::remove_cvref_t<T>> && tree::can_be_sent<T>();
}
template <class... T>
consteval bool all_sent(std::type_identity<std::tuple<T...>>) {
  return (tree::can_be_sent<T>() && ...);
}
template <class V, std::size_t... I>
consteval bool alternatives_made(std::index_sequence<I...>) {
  return (can_be_made<std::variant_alternative_t<I, V>>() && ...);
}
}  // namespace detail

template <class T>
consteval bool can_be_sent() {
  using V = std::remove_cvref_t<T>;
  if constexpr (tensor<V> || std::is_arithmetic_v<V> || std::is_enum_v<V> || std::same_as<V, std::string> ||
                std::same_as<V, std::monostate>)
    return true;
  else if constexpr (plain_leaf<V> || marked_per_rank<V>) return false;
  else if constexpr (fixed_parts<V>)
    return detail::all_sent(std::type_identity<decltype(parts_of(std::declval<V&>()))>());
  else if constexpr (optional_like<V>)
    return requires { typename V::value_type; } && detail::can_be_made<decltype(*std::declval<V&>())>();
  else if constexpr (variant_like<V>)
    return detail::alternatives_made<V>(std::make_index_sequence<std::variant_size_v<V>>());
  else if constexpr (map_like<V>)
    return detail::can_be_made<typename V::key_type>() && detail::can_be_made<typename V::mapped_type>();
  else if constexpr (std::ranges::range<V>)
    return !std::ranges::view<V> && detail::can_be_made<std::ranges::range_value_t<V>>();
  else return false;
}

/// Whether pack() accepts a T and unpack() can create its parts; unpack() also needs T itself to be
/// default-initializable.
template <class T>
concept sendable = can_be_sent<T>();

}  // namespace muster::tree
