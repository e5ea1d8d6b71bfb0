#pragma once

#include <algorithm>  // std::ranges::range, view
#include <concepts>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/tree/per_rank.h"

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

// Values made of tensors: tensors inside tuples, pairs, arrays, vectors, maps, optionals, variants,
// torch::data::Example, and aggregates of up to eight fields, in any nesting, without a declaration. Any other class
// lists its fields in one line:
//   friend auto tensors_of(Batch& b) { return std::tie(b.image, b.boxes); }

template <class T>
concept tensor = std::same_as<std::remove_cvref_t<T>, at::Tensor>;

/// Leaves without tensors, which visit() skips: numbers, enumerations, strings, std::monostate.
template <class T>
concept plain_leaf = std::is_arithmetic_v<std::remove_cvref_t<T>> || std::is_enum_v<std::remove_cvref_t<T>> ||
                     std::convertible_to<T, std::string_view> || std::same_as<std::remove_cvref_t<T>, std::monostate> ||
                     std::same_as<std::remove_cvref_t<T>, std::nullopt_t>;

template <class T>
concept optional_like = requires(std::remove_cvref_t<T>& t) {
  t.has_value();
  *t;
};

template <class T>
concept map_like = requires { typename std::remove_cvref_t<T>::mapped_type; } && std::ranges::range<T>;

template <class T>
concept list_like = std::ranges::range<T> && !map_like<T> && !plain_leaf<T>;

/// A list of leaves without tensors that can be concatenated, such as the names of a batch's samples.
template <class T>
concept plain_list = list_like<T> && plain_leaf<std::ranges::range_value_t<T>> &&
                     requires(std::remove_cvref_t<T>& t, std::ranges::range_value_t<T> e) { t.push_back(e); };

/// Whether the class has the one-line opt-in, tensors_of().
template <class T>
concept listed = requires(std::remove_cvref_t<T>& t) { tensors_of(t); };

template <class T>
concept tuple_like = requires { std::tuple_size<std::remove_cvref_t<T>>::value; } && !std::ranges::range<T>;

template <class T>
concept variant_like = requires { std::variant_size<std::remove_cvref_t<T>>::value; };

/// torch::data::Example and similar: a class with public members `data` and, unless it names a DataType, `target`.
template <class T>
concept example_like =
    !std::is_aggregate_v<std::remove_cvref_t<T>> && requires(std::remove_cvref_t<T>& t) { t.data; } &&
    (
        requires(std::remove_cvref_t<T>& t) { t.target; } || requires { typename std::remove_cvref_t<T>::DataType; });

/// A class whose type determines its parts: a class with tensors_of(), a tuple, an Example, a plain struct.
template <class T>
concept fixed_parts = listed<T> || (!optional_like<T> && !variant_like<T> && !map_like<T> && !list_like<T> &&
                                    (tuple_like<T> || example_like<T> || aggregate<T>));

/// The parts of such a class, as a tuple of references.
template <fixed_parts T>
auto parts_of(T& value) {
  if constexpr (listed<T>) return tensors_of(const_cast<std::remove_const_t<T>&>(value));
  else if constexpr (tuple_like<T>) return std::apply([](auto&... part) { return std::tie(part...); }, value);
  else if constexpr (example_like<T> && requires { value.target; }) return std::tie(value.data, value.target);
  else if constexpr (example_like<T>) return std::tie(value.data);
  else return fields(value);
}

namespace detail {
template <class T>
struct NestsTensors : std::bool_constant<tensor<T>> {};
// A view does not own its elements.
template <list_like T>
  requires(!std::ranges::view<T> && std::same_as<std::ranges::range_reference_t<T>, std::ranges::range_value_t<T>&>)
struct NestsTensors<T> : NestsTensors<std::ranges::range_value_t<T>> {};
template <class T>
struct NestsTensors<std::optional<T>> : NestsTensors<T> {};
template <map_like T>
struct NestsTensors<T> : NestsTensors<typename T::mapped_type> {};
template <class... T>
struct NestsTensors<std::tuple<T...>> : std::bool_constant<(sizeof...(T) > 0) && (NestsTensors<T>::value && ...)> {};
template <class A, class B>
struct NestsTensors<std::pair<A, B>> : std::bool_constant<NestsTensors<A>::value && NestsTensors<B>::value> {};
}  // namespace detail

/// Consists only of tensors: a tensor, or tuples, pairs, lists, maps and optionals of tensors.
template <class T>
inline constexpr bool nests_tensors = detail::NestsTensors<std::remove_cvref_t<T>>::value;

/// Calls f(at::Tensor&) on every tensor of the value, in the order of declaration; undefined tensors included.
/// For a const value f receives const at::Tensor&. An f that also accepts plain_list or PerRank receives them whole.
/// Requires: a type as described at the top of this file; any other type is a compile error.
template <class T, class F>
void visit(T& value, F&& f) {
  using V = std::remove_cv_t<T>;
  if constexpr (tensor<V>) {
    f(value);
  } else if constexpr (plain_leaf<V>) {
  } else if constexpr (marked_per_rank<V>) {
    if constexpr (std::invocable<F&, T&>) f(value);
    else tree::visit(value.value, f);
  } else if constexpr (fixed_parts<V>) {
    auto parts = parts_of(value);
    std::apply(
        [&](auto&... part) {
          if constexpr (std::is_const_v<T>) (tree::visit(std::as_const(part), f), ...);
          else (tree::visit(part, f), ...);
        },
        parts);
  } else if constexpr (optional_like<V>) {
    if (value.has_value()) tree::visit(*value, f);
  } else if constexpr (variant_like<V>) {
    std::visit([&](auto& held) { tree::visit(held, f); }, value);
  } else if constexpr (map_like<V>) {
    for (auto& entry : value) tree::visit(entry.second, f);
  } else if constexpr (list_like<V>) {
    if constexpr (plain_list<V>) {
      if constexpr (std::invocable<F&, T&>) f(value);
    } else {
      for (auto& element : value) tree::visit(element, f);
    }
  } else {
    static_assert(fixed_parts<V>,
                  "muster cannot see the tensors of this type: add to it `friend auto tensors_of(T& t) { return "
                  "std::tie(t.x, t.y); }`");
  }
}

/// Returns the value with every tensor replaced by f(tensor).
template <class T, class F>
T transform(T value, F&& f) {
  tree::visit(value, [&](at::Tensor& t) { t = f(std::as_const(t)); });
  return value;
}

// The paths of the tensors in a value, as text, so that ranks can compare their values before a collective.

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

/// Returns the tensor on the device: the tensor itself if it is already there, undefined if it is undefined.
/// `non_blocking`: a copy from pinned memory to an accelerator returns before it is complete; it is ordered on the
/// accelerator's current stream.
inline at::Tensor moved(const at::Tensor& tensor, at::Device device, bool non_blocking = false) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  return tensor.to(device, tensor.scalar_type(), non_blocking);
}

/// Moves every tensor of the value to the device, in place.
template <class T>
void move_to(T& value, at::Device device, bool non_blocking = false) {
  tree::visit(value, [&](at::Tensor& t) { t = moved(t, device, non_blocking); });
}

/// Returns the value with every tensor on the device.
template <class T>
T to(T value, at::Device device, bool non_blocking = false) {
  move_to(value, device, non_blocking);
  return value;
}

}  // namespace muster::tree
