#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

namespace muster {

namespace base {
void number_of_fields_and_values_differ();  // not constexpr: a call is a compile error

/// The number of values that the replacement fields of a text need, fields of a nested width included; 0 if the fields
/// are numbered.
consteval std::size_t count_fields(std::string_view text) {
  std::size_t fields = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{') continue;
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (next >= '0' && next <= '9') return 0;
    if (next == '{') ++i;
    else ++fields;
  }
  return fields;
}
}  // namespace base

/// A format text with a `{}` for each of the values T. The fields of a literal are counted by the compiler, those of a
/// run-time string when it is formatted. Without values the text is used unchanged.
template <class... T>
class FormatText {
 public:
  template <std::size_t N>
  consteval FormatText(const char (&literal)[N]) : text_(literal, N - 1) {
    const std::size_t fields = base::count_fields(text_);
    if (sizeof...(T) > 0 && fields > 0 && fields != sizeof...(T)) base::number_of_fields_and_values_differ();
  }
  template <class S>
    requires(std::same_as<S, std::string> || std::same_as<S, std::string_view> || std::same_as<S, const char*>)
  FormatText(const S& text) : text_(text) {}

  constexpr std::string_view text() const noexcept { return text_; }

 private:
  std::string_view text_;
};

}  // namespace muster
