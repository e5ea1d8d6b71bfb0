#pragma once

#include <string>
#include <variant>

#include "muster/track/logged_value.h"

namespace muster::track {

/// The shortest text that reads back as the same number; "nan", "inf" and "-inf".
std::string number_text(double value);
inline std::string number_text(int64_t value) { return std::to_string(value); }

/// Whether the value is a number, a boolean or text.
inline bool is_plain(const LoggedValue& value) noexcept { return value.data.index() < 4; }

/// Combines functions for the alternatives of LoggedValue::Data in one object.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace muster::track
