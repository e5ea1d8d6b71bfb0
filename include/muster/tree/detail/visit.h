#pragma once

#include <algorithm>  // std::ranges::range, view
#include <concepts>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <ATen/core/Tensor.h>

#include "muster/tree/detail/fields.h"
#include "muster/tree/per_rank.h"

/// Values made of tensors: tensors inside tuples, pairs, arrays, vectors, maps, optionals, variants,
/// torch::data::Example, and aggregates of up to eight fields, in any nesting, without a declaration. Any other class
/// lists its fields in one line:
///   friend auto tensors_of(Batch& b) { return std::tie(b.image, b.boxes); }
namespace muster::tree {

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

/// torch::data::Example and similar: a class with public members `data` and `target`.
template <class T>
concept example_like = !std::is_aggregate_v<std::remove_cvref_t<T>> && requires(std::remove_cvref_t<T>& t) {
  t.data;
  t.target;
};

/// An Example without target.
template <class T>
concept target_less_example =
    !std::is_aggregate_v<std::remove_cvref_t<T>> && !example_like<T> && requires(std::remove_cvref_t<T>& t) {
      typename std::remove_cvref_t<T>::DataType;
      t.data;
    };

/// A class whose type determines its parts: a class with tensors_of(), a tuple, an Example, a plain struct.
template <class T>
concept fixed_parts = listed<T> || (!optional_like<T> && !variant_like<T> && !map_like<T> && !list_like<T> &&
                                    (tuple_like<T> || example_like<T> || target_less_example<T> || aggregate<T>));

/// The parts of such a class, as a tuple of references.
template <fixed_parts T>
auto parts_of(T& value) {
  if constexpr (listed<T>) return tensors_of(const_cast<std::remove_const_t<T>&>(value));
  else if constexpr (tuple_like<T>) return std::apply([](auto&... part) { return std::tie(part...); }, value);
  else if constexpr (example_like<T>) return std::tie(value.data, value.target);
  else if constexpr (target_less_example<T>) return std::tie(value.data);
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

}  // namespace muster::tree
