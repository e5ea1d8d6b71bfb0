#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/tree/detail/visit.h"

namespace muster::tree {

/// Serialises the structure and tensors of a value into one buffer.
class Packer {
 public:
  void bytes(const void* from, size_t count) { structure_.append(static_cast<const char*>(from), count); }
  void count(size_t n);
  void text(std::string_view text);
  /// Throws: UsageError (MU111) for a tensor that is sparse or quantized.
  void tensor(const at::Tensor& tensor);
  /// Everything written so far, as a CPU tensor of uint8.
  at::Tensor finish() const;

 private:
  std::string structure_;
  std::vector<std::pair<at::Tensor, int64_t>> tensors_;  // with their offsets after the structure
  int64_t payload_ = 0;
};

/// Reads what Packer wrote, in the same order.
/// Throws: UsageError (MU111), from every member, if the bytes are truncated or were not written by Packer.
class Unpacker {
 public:
  explicit Unpacker(const at::Tensor& packed);
  void bytes(void* to, size_t count);
  size_t count();
  std::string text();
  /// A CPU tensor that shares the memory of the packed bytes.
  at::Tensor tensor();
  /// Checks that no bytes are left.
  void finish() const;

 private:
  at::Tensor packed_;
  int64_t end_ = 0;  // end of the structure
  int64_t position_ = 0;
};

template <class T>
void pack_into(Packer& to, const T& value) {
  using V = std::remove_cvref_t<T>;
  auto each = [&](const auto&... part) { (tree::pack_into(to, part), ...); };
  if constexpr (tensor<V>) {
    to.tensor(value);
  } else if constexpr (std::is_arithmetic_v<V> || std::is_enum_v<V>) {
    to.bytes(&value, sizeof value);
  } else if constexpr (std::same_as<V, std::string>) {
    to.text(value);
  } else if constexpr (std::same_as<V, std::monostate>) {
  } else if constexpr (fixed_parts<V>) {
    std::apply(each, parts_of(value));
  } else if constexpr (optional_like<V>) {
    to.count(value.has_value());
    if (value.has_value()) tree::pack_into(to, *value);
  } else if constexpr (variant_like<V>) {
    to.count(value.index());
    std::visit(each, value);
  } else if constexpr (map_like<V>) {
    to.count(value.size());
    for (const auto& [key, held] : value) each(key, held);
  } else if constexpr (list_like<V>) {
    to.count(value.size());
    for (const typename V::value_type& element : value) tree::pack_into(to, element);
  } else {
    static_assert(
        fixed_parts<V>,
        "muster cannot send this type: add to it `friend auto tensors_of(T& t) { return std::tie(t.x, t.y); }`; "
        "texts are std::string");
  }
}

template <class T>
void unpack_from(Unpacker& from, T& value) {
  auto each = [&](auto&... part) { (tree::unpack_from(from, part), ...); };
  if constexpr (tensor<T>) {
    value = from.tensor();
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    from.bytes(&value, sizeof value);
  } else if constexpr (std::same_as<T, std::string>) {
    value = from.text();
  } else if constexpr (std::same_as<T, std::monostate>) {
  } else if constexpr (fixed_parts<T>) {
    std::apply(each, parts_of(value));
  } else if constexpr (optional_like<T>) {
    if (from.count() == 0) return value.reset();
    tree::unpack_from(from, value.emplace());
  } else if constexpr (variant_like<T>) {
    [&, index = from.count()]<std::size_t... I>(std::index_sequence<I...>) {
      (..., (index == I ? tree::unpack_from(from, value.template emplace<I>()) : void()));
    }(std::make_index_sequence<std::variant_size_v<T>>());
  } else if constexpr (map_like<T>) {
    value.clear();
    for (auto left = from.count(); left > 0; --left) {
      typename T::key_type key{};
      typename T::mapped_type held{};
      each(key, held);
      value.emplace(std::move(key), std::move(held));
    }
  } else if constexpr (requires { value.push_back(typename T::value_type()); }) {
    value.clear();
    for (auto left = from.count(); left > 0; --left) {
      typename T::value_type element{};
      tree::unpack_from(from, element);
      value.push_back(std::move(element));
    }
  } else {
    from.count();  // the type says it
    for (auto& element : value) tree::unpack_from(from, element);
  }
}

/// Serialises a value made of tensors, numbers and strings into one CPU tensor of uint8, for files and other ranks.
/// Throws: UsageError (MU111) for tensors that are sparse or quantized.
template <class T>
at::Tensor pack(const T& value) {
  Packer packer;
  pack_into(packer, value);
  return packer.finish();
}

/// Restores the value given to pack(), bit for bit, on the CPU and without gradients; its tensors share the memory of
/// `packed`. Throws: UsageError (MU111) if the bytes were not made by pack() from a T.
template <class T>
T unpack(const at::Tensor& packed) {
  Unpacker unpacker(packed);
  T value{};
  unpack_from(unpacker, value);
  unpacker.finish();
  return value;
}

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
