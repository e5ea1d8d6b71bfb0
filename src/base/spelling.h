#pragma once  // for other rooms

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

/// The text with its ASCII letters in lower case.
inline std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// The text with its ASCII letters in upper case.
inline std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

/// The text without these characters at its beginning and end; a view into it.
inline std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\n") {
  const auto first = text.find_first_not_of(blanks);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

/// The only parser of booleans, for options, files and variables alike: true, yes, on, 1, y, t; false, no, off, 0, n,
/// f; in any case. These are the words of YAML 1.1 and of Accelerate. nullopt for any other text.
inline std::optional<bool> read_bool(std::string_view text) {
  const auto word = lower_case(std::string(text));
  const auto is_one_of = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (is_one_of({"true", "yes", "on", "1", "y", "t"})) return true;
  if (is_one_of({"false", "no", "off", "0", "n", "f"})) return false;
  return {};
}

/// Whether both texts are equal, or mean the same boolean.
inline bool say_the_same(std::string_view one, std::string_view other) {
  return one == other || (read_bool(one) && read_bool(one) == read_bool(other));
}

}  // namespace muster
