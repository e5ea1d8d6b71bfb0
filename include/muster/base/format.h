#pragma once

#include <concepts>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace muster {

/// One value of a formatted line.
using FormatValue = std::variant<long long, unsigned long long, double, bool, std::string>;

namespace base {
template <class T>
FormatValue format_value(const T& value) {
  if constexpr (std::same_as<T, bool>) return value;
  else if constexpr (std::signed_integral<T>) return static_cast<long long>(value);
  else if constexpr (std::unsigned_integral<T>) return static_cast<unsigned long long>(value);
  else if constexpr (std::floating_point<T>) return static_cast<double>(value);
  else if constexpr (std::convertible_to<T, std::string_view>) return std::string(std::string_view(value));
  else {
    std::ostringstream stream;
    stream << value;
    return stream.str();
  }
}
std::string format_values(std::string_view text, std::initializer_list<FormatValue> values);
}  // namespace base

/// The text with `{}` and `{:.2f}` replaced by the values, in the syntax of std::format (which g++ 12 lacks).
/// Values: numbers, strings, and anything with an operator<< for streams.
/// Throws: ConfigError (MU003) if the text does not match the values.
template <class... T>
std::string formatted(std::string_view text, const T&... values) {
  return base::format_values(text, {base::format_value(values)...});
}

}  // namespace muster
