#pragma once  // for other rooms

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include "base/listing.h"

namespace muster {

/// Number of names that first_names() shows.
inline constexpr std::size_t kNamesShown = 10;

/// "a, b and 3 more": the first names of a range, for a message. `name_of` converts an entry to text.
template <class Range, class NameOf = std::identity>
std::string first_names(const Range& range, NameOf&& name_of = {}) {
  const std::size_t count = std::size(range);
  const auto begin = std::begin(range);
  const auto end = std::next(begin, static_cast<std::ptrdiff_t>(std::min(count, kNamesShown)));
  const auto text = joined(std::ranges::subrange(begin, end), name_of);
  return count > kNamesShown ? text + " and " + std::to_string(count - kNamesShown) + " more" : text;
}

/// The name in single quotes.
inline std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

}  // namespace muster
