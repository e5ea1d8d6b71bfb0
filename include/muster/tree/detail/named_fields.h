#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "muster/base/error.h"
#include "muster/tree/detail/visit.h"
#include "muster/tree/state.h"

/// The fields of a plain struct by name. The compiler supplies the names.
namespace muster::tree {

namespace detail {
/// Storage with the field addresses of a T, of any linkage, that holds no T.
template <class T>
union Specimen {
  constexpr Specimen() : none() {}
  constexpr ~Specimen() {}  // NOLINT(modernize-use-equals-default): the destructor of a T need not be constexpr
  char none;
  T value;
};
template <class T>
inline constexpr Specimen<T> kSpecimen;
template <class F>
struct FieldPlace {
  const F* field;
};
template <auto P>
consteval std::string_view spelled() {
  return std::source_location::current().function_name();
}

/// The name at the end of "{(& kSpecimen<T>.Specimen<T>::value.T::rate)}" or "{&kSpecimen.value.rate}".
consteval std::string_view last_name(std::string_view text) {
  auto end = text.rfind(")}");
  if (end == text.npos) end = text.rfind('}');
  auto begin = end;
  while (text[begin - 1] != ':' && text[begin - 1] != '.') --begin;
  return text.substr(begin, end - begin);
}

template <class T, std::size_t I>
consteval std::string_view field_name() {
  constexpr auto* place = &std::get<I>(fields(kSpecimen<T>.value));
  return last_name(spelled<FieldPlace<std::remove_cvref_t<decltype(*place)>>{place}>());
}
}  // namespace detail

/// A plain struct of one to eight fields that names its options.
template <class T>
concept named_fields = aggregate<T> && field_count<T> >= 1 && field_count<T> <= 8;

template <named_fields T>
inline constexpr auto field_names = []<std::size_t... I>(std::index_sequence<I...>) {
  return std::array<std::string_view, sizeof...(I)>{detail::field_name<T, I>()...};
}(std::make_index_sequence<field_count<T>>());

/// Converts numbers, texts, lists and optionals of them, and plain structs of them to a State.
template <class V>
State state_of(const V& value) {
  if constexpr (std::constructible_from<State, V>) {
    return State(value);
  } else if constexpr (requires { value.has_value(); }) {
    return value ? state_of(*value) : State();
  } else if constexpr (requires { value.begin(); }) {
    State::List list;
    for (const auto& one : value) list.push_back(state_of(one));
    return list;
  } else {
    static_assert(named_fields<V>,
                  "a hyper-parameter is a number, a text, a list or optional of such, or a plain struct of one to "
                  "eight of them");
    State state = State::Map{};
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      const auto all = fields(value);
      (state.set(field_names<V>[I], state_of(std::get<I>(all))), ...);
    }(std::make_index_sequence<field_count<V>>());
    return state;
  }
}

/// Loads the fields from a State. A field that the state does not name keeps its value.
/// Throws: CheckpointError (MU208) for a state of another kind, or a list of another length than an array's.
template <class V>
void load_fields(V& value, const State& state) {
  if constexpr (std::constructible_from<State, V>) {
    value = state.as<V>();
  } else if constexpr (requires { value.has_value(); }) {
    if (state.empty()) value.reset();
    else load_fields(value.emplace(), state);
  } else if constexpr (requires { value.emplace_back(); }) {
    value.clear();
    for (const auto& one : state.list()) load_fields(value.emplace_back(), one);
  } else if constexpr (requires { value.begin(); }) {
    const auto& list = state.list();
    if (list.size() != value.size())
      throw CheckpointError("MU208", "a saved state holds a list of " + std::to_string(list.size()) + " where one of " +
                                         std::to_string(value.size()) + " is wanted");
    for (std::size_t i = 0; auto& one : value) load_fields(one, list[i++]);
  } else {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      const auto all = fields(value);
      const auto one = [&](auto& field, std::string_view name) {
        if (const auto* found = state.find(name)) load_fields(field, *found);
      };
      (one(std::get<I>(all), field_names<V>[I]), ...);
    }(std::make_index_sequence<field_count<V>>());
  }
}

}  // namespace muster::tree
