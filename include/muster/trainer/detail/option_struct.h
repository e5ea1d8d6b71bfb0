#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/detail/options.h"
#include "muster/trainer/detail/option_field.h"
#include "muster/tree/detail/named_fields.h"

/// The fields of plain structs as options. The compiler supplies their names.
namespace muster::trainer {

template <class V>
concept option_scalar = std::is_arithmetic_v<V> || std::same_as<V, std::string>;
template <class V>
concept option_optional = requires(V v) { v.has_value(); } && option_scalar<typename V::value_type>;
template <class V>
concept option_list =
    !std::same_as<V, std::string> && requires(V v) { v.emplace_back(); } && option_scalar<typename V::value_type>;

template <class V>
std::string type_of_field() {
  if constexpr (std::same_as<V, bool>) return "true or false";
  else if constexpr (std::integral<V>) return "whole number";
  else if constexpr (std::floating_point<V>) return "number";
  else if constexpr (std::same_as<V, std::string>) return "text";
  else if constexpr (option_optional<V>) return type_of_field<typename V::value_type>() + " or none";
  else return "list: " + type_of_field<typename V::value_type>();
}

template <std::integral V>
std::string read_whole(const std::string& text, V& value) {
  using Wide = std::conditional_t<std::is_signed_v<V>, int64_t, uint64_t>;
  using Limits = std::numeric_limits<V>;
  Wide wide = 0;
  if (!options::Value<Wide>::read(text, wide).empty() || !std::in_range<V>(wide))
    return "a whole number from " + std::to_string(Limits::min()) + " to " + std::to_string(Limits::max());
  value = static_cast<V>(wide);
  return "";
}

template <std::floating_point V>
std::string read_number(const std::string& text, V& value) {
  double wide = 0;
  if (auto wanted = options::Value<double>::read(text, wide); !wanted.empty()) return wanted;
  value = static_cast<V>(wide);
  return std::isinf(value) && !std::isinf(wide) ? "a number that its type holds" : "";
}

template <class V>
std::string read_field(const std::string& text, V& value) {
  if constexpr (std::same_as<V, bool>) {
    return options::Value<bool>::read(text, value);
  } else if constexpr (std::integral<V>) {
    return read_whole(text, value);
  } else if constexpr (std::floating_point<V>) {
    return read_number(text, value);
  } else if constexpr (std::same_as<V, std::string>) {
    value = text;
    return "";
  } else if constexpr (option_optional<V>) {
    typename V::value_type given{};
    const bool none = text == "none" || text == "null";
    const auto wanted = none ? "" : read_field(text, given);
    if (!wanted.empty()) return wanted + ", or none,";
    value = none ? V() : V(std::move(given));
    return "";
  } else {
    std::vector<std::string> items;
    auto wanted = read_items(text, items);
    value.clear();
    for (const auto& item : items) {
      typename V::value_type one{};
      if (wanted.empty()) wanted = read_field(item, one);
      value.push_back(std::move(one));
    }
    return wanted;
  }
}

template <class V>
std::string write_field(const V& value) {
  if constexpr (std::same_as<V, bool>) {
    return options::Value<bool>::write(value);
  } else if constexpr (std::integral<V>) {
    return std::to_string(value);
  } else if constexpr (std::floating_point<V>) {
    char text[64];  // the shortest text that reads back as the same number
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  } else if constexpr (std::same_as<V, std::string>) {
    return value;
  } else if constexpr (option_optional<V>) {
    return value ? write_field(*value) : "none";
  } else {
    std::vector<std::string> items;
    for (const auto& one : value) items.push_back(write_field<typename V::value_type>(one));
    return write_items(items);
  }
}

template <class V>
inline constexpr bool is_option_value = option_scalar<V> || option_optional<V> || option_list<V>;

template <class S>
void add_fields(std::vector<OptionField>& all, const std::string& prefix, S& values) {
  static_assert(tree::named_fields<S>,
                "an option is a number, a bool, a text, a list or optional of such, or a plain struct of one to eight "
                "of them: put more into structs within");
  if constexpr (tree::named_fields<S>) {
    const auto add = [&]<class V>(std::string_view name, V& field) {
      const auto full = prefix + std::string(name);
      if constexpr (!is_option_value<V>) add_fields(all, full + ".", field);
      else
        all.push_back({full, type_of_field<V>(), option_list<V>, std::same_as<V, bool>, option_optional<V>,
                       [&field](const std::string& text) { return read_field(text, field); },
                       [&field] { return write_field(field); }});
    };
    const auto refs = tree::fields(values);
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (add(tree::field_names<S>[I], std::get<I>(refs)), ...);
    }(std::make_index_sequence<tree::field_count<S>>());
  }
}

/// The fields of a plain struct, in declaration order. Requires: `values` outlives them and does not move.
template <class S>
std::vector<OptionField> fields_of(S& values) {
  std::vector<OptionField> all;
  add_fields(all, "", values);
  return all;
}

}  // namespace muster::trainer
