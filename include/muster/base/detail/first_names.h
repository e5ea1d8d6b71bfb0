#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

namespace muster {

/// Names that first_names() shows.
inline constexpr std::size_t kNamesShown = 10;

/// "a, b and 3 more": the first names of a range for a message. `name_of` makes an entry a text.
template <class Range, class NameOf = std::identity>
std::string first_names(const Range& range, NameOf&& name_of = {}) {
  std::string text;
  std::size_t shown = 0;
  for (const auto& entry : range) {
    if (shown == kNamesShown) return text + " and " + std::to_string(std::size(range) - shown) + " more";
    text += (shown++ ? ", " : "") + std::string(std::invoke(name_of, entry));
  }
  return text;
}

/// "'a'".
inline std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

}  // namespace muster
