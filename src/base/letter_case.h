#pragma once  // for other rooms

#include <algorithm>
#include <cctype>
#include <string>

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

}  // namespace muster
