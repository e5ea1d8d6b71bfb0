#pragma once  // for other rooms

#include <string_view>

namespace muster {

/// The text without these characters at its beginning and end; a view into it.
inline std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\n") {
  const auto first = text.find_first_not_of(blanks);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

}  // namespace muster
