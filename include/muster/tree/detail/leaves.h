#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "muster/tree/detail/visit.h"

/// The paths of the tensors in a value, as text, so that ranks can compare their values before a collective.
namespace muster::tree {

/// One tensor, or one list of strings or numbers. Its path is made of "[1]" in a list, "[\"loss\"]" in a map and "(0)"
/// in a tuple or struct, from the outermost in; it is "" if the whole value is the tensor or list.
struct Leaf {
  std::string path;
  bool defined = true;
};

namespace detail {

template <class T>
struct AnyVaries : std::false_type {};

template <class V>
consteval bool varies() {
  if constexpr (tensor<V> || plain_leaf<V> || plain_list<V>) {
    return false;
  } else if constexpr (fixed_parts<V>) {
    return AnyVaries<decltype(parts_of(std::declval<V&>()))>::value;
  } else if constexpr (optional_like<V>) {
    return !plain_leaf<decltype(*std::declval<V&>())>;
  } else if constexpr (variant_like<V>) {
    return true;
  } else if constexpr (map_like<V>) {
    return !plain_leaf<typename V::mapped_type>;
  } else {
    using Element = std::ranges::range_value_t<V>;
    if constexpr (std::is_array_v<V> || requires { std::tuple_size<V>::value; })
      return varies<std::remove_cvref_t<Element>>();
    else return !plain_leaf<Element>;
  }
}

template <class... T>
struct AnyVaries<std::tuple<T...>> : std::bool_constant<(varies<std::remove_cvref_t<T>>() || ...)> {};

template <class K>
std::string key_text(const K& key, size_t place) {
  if constexpr (std::convertible_to<const K&, std::string_view>)
    // Not by operator+ from the left: g++ 12 warns about it at -O3.
    return std::string(1, '"').append(std::string_view(key)).append(1, '"');
  else if constexpr (std::is_enum_v<K>) return std::to_string(static_cast<long long>(key));
  else if constexpr (std::is_arithmetic_v<K>) return std::to_string(key);
  else return "entry " + std::to_string(place);
}

/// The order is that of visit().
template <bool with_lists, class T>
void add_leaves(const T& value, const std::string& path, std::vector<Leaf>& leaves) {
  const auto parts = [&](const auto&... part) {
    size_t place = 0;
    (add_leaves<with_lists>(part, path + "(" + std::to_string(place++) + ")", leaves), ...);
  };
  if constexpr (tensor<T>) {
    leaves.push_back({path, value.defined()});
  } else if constexpr (plain_leaf<T>) {
  } else if constexpr (marked_per_rank<T>) {
    add_leaves<with_lists>(value.value, path, leaves);
  } else if constexpr (fixed_parts<T>) {
    std::apply(parts, parts_of(value));
  } else if constexpr (optional_like<T>) {
    if (value.has_value()) add_leaves<with_lists>(*value, path, leaves);
  } else if constexpr (variant_like<T>) {
    std::visit(
        [&](const auto& held) {
          add_leaves<with_lists>(held, path + "<" + std::to_string(value.index()) + ">", leaves);
        },
        value);
  } else if constexpr (map_like<T>) {
    size_t place = 0;
    for (const auto& [key, held] : value)
      add_leaves<with_lists>(held, path + "[" + key_text(key, place++) + "]", leaves);
  } else if constexpr (plain_list<T>) {
    if (with_lists) leaves.push_back({path});
  } else {
    size_t place = 0;
    for (const auto& element : value)
      add_leaves<with_lists>(element, path + "[" + std::to_string(place++) + "]", leaves);
  }
}

}  // namespace detail

/// Whether two values of this type can differ in which tensors they have: the type contains a variant, or a list, map
/// or optional of more than plain leaves.
template <class T>
inline constexpr bool varies = detail::varies<std::remove_cvref_t<T>>();

/// Returns the tensors of a value in the order of visit(), and with `with_lists` also its lists of strings and numbers.
template <bool with_lists = false, class T>
std::vector<Leaf> leaves_of(const T& value) {
  std::vector<Leaf> leaves;
  detail::add_leaves<with_lists>(value, "", leaves);
  return leaves;
}

}  // namespace muster::tree
