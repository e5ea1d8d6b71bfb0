#pragma once  // for other rooms

#include <algorithm>
#include <cctype>
#include <string>

namespace muster {

/// The text with the ASCII letters in it small.
inline std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// The text with the ASCII letters in it as capitals.
inline std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

}  // namespace muster
