#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace muster {

/// Longest name of others that a message repeats, in bytes.
inline constexpr std::size_t kMostShown = 120;

/// Text that came from outside (a file, another rank), for a message or a terminal: what would steer a terminal, hide or reorder
/// text is escaped (control characters, line ends, marks of direction, bytes that are no UTF-8), and a backslash with it, so that
/// nothing passes for an escape; what is longer than `most` is cut, at a whole character, and ends with "...".
std::string shown(std::string_view text, std::size_t most = kMostShown);
/// The same in single quotes.
std::string in_quotes(std::string_view text, std::size_t most = kMostShown);

}  // namespace muster
