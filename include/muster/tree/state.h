#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster {

/// The common form of saved state: empty, a bool, a number, text, a tensor, a list of states, or a map of named states.
/// A value type; copies share the memory of tensors. Text may hold any bytes.
/// Thread safety: as a std::vector.
class State {
 public:
  using List = std::vector<State>;
  /// Named states in the order in which they were added. Names are unique.
  using Map = std::vector<std::pair<std::string, State>>;
  enum class Kind : std::uint8_t { none, boolean, integer, number, text, tensor, list, map };

  State() = default;
  State(bool value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  /// An unsigned number is stored by its bits: read it back as unsigned.
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  State(T value) : value_(static_cast<std::int64_t>(value)) {}  // NOLINT(google-explicit-constructor)
  template <std::floating_point T>
  State(T value) : value_(static_cast<double>(value)) {}         // NOLINT(google-explicit-constructor)
  State(std::string value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  State(std::string_view value) : value_(std::string(value)) {}  // NOLINT(google-explicit-constructor)
  State(const char* value) : value_(std::string(value)) {}       // NOLINT(google-explicit-constructor)
  State(at::Tensor value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  State(List value) : value_(std::move(value)) {}                // NOLINT(google-explicit-constructor)
  /// Throws: CheckpointError (MU209) for a duplicate name.
  State(Map value);  // NOLINT(google-explicit-constructor)

  Kind kind() const noexcept { return static_cast<Kind>(value_.index()); }
  bool empty() const noexcept { return kind() == Kind::none; }

  // The value. Throws: CheckpointError (MU208) if the state is of another kind. number() also accepts an integer.
  bool boolean() const;
  std::int64_t integer() const;
  double number() const;
  const std::string& text() const;
  const at::Tensor& tensor() const;
  const List& list() const;
  List& list();
  const Map& map() const;
  Map& map();

  /// The value as type T: bool, any integer, any floating type, std::string or at::Tensor.
  /// Throws: CheckpointError (MU208) if the state is of another kind, or for an integer that does not fit in a type of
  /// fewer than 64 bits.
  template <class T>
  T as() const {
    if constexpr (std::same_as<T, bool>) return boolean();
    else if constexpr (std::integral<T>)
      return static_cast<T>(fitting(sizeof(T) == sizeof(std::int64_t) || std::in_range<T>(integer())));
    else if constexpr (std::floating_point<T>) return static_cast<T>(number());
    else if constexpr (std::same_as<T, std::string>) return text();
    else return tensor();
  }

  /// The named state. Throws: CheckpointError (MU209), listing the existing names; MU208 if this is not a map.
  const State& at(std::string_view name) const;
  State& at(std::string_view name);
  /// The named state; nullptr if it does not exist or this is not a map.
  const State* find(std::string_view name) const noexcept;
  /// Adds or replaces a named state, and returns it. Turns an empty state into a map.
  State& set(std::string_view name, State value);

  /// Makes State a value of tensors (see visit.h), so that it can be packed and sent.
  friend auto tensors_of(State& state) { return std::tie(state.value_); }

 private:
  template <class T>
  const T& get(Kind wanted) const;
  std::int64_t fitting(bool fits) const;

  std::variant<std::monostate, bool, std::int64_t, double, std::string, at::Tensor, List, Map> value_;
};

/// The kind in words: "a tensor", "named states".
std::string_view name_of(State::Kind kind);

/// Whether kinds, names, order and values are equal, and tensors have equal dtype, shape and bits.
bool identical(const State& a, const State& b);

/// Returns a deep copy, which shares no memory with `state`.
State clone(const State& state);

/// Calls f(path, tensor) for all tensors, depth first; the path joins names and list positions by "/".
template <class F>
void for_each_tensor(const State& state, F&& f, const std::string& path = {}) {
  const auto below = [&path](const std::string& name) { return path.empty() ? name : path + "/" + name; };
  if (state.kind() == State::Kind::tensor) {
    f(path, state.tensor());
  } else if (state.kind() == State::Kind::map) {
    for (const auto& [name, part] : state.map()) for_each_tensor(part, f, below(name));
  } else if (state.kind() == State::Kind::list) {
    for (std::size_t i = 0; i < state.list().size(); ++i) for_each_tensor(state.list()[i], f, below(std::to_string(i)));
  }
}

/// A class whose state can be saved: state_dict() returns a State; load_state_dict(state) restores it, or throws
/// without changing anything.
template <class T>
concept Stateful = requires(T& object, const T& constant, const State& state) {
  { constant.state_dict() } -> std::convertible_to<State>;
  object.load_state_dict(state);
};

/// A class with the earlier names of these functions. Functions that take a Stateful class refuse it.
template <class T>
concept FormerlyStateful = !Stateful<T> && requires(T& object, const T& constant, const State& state) {
  constant.save_state();
  object.load_state(state);
};

}  // namespace muster
