#pragma once  // for other rooms

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

/// Length at which a message cuts a name that came from outside, in bytes.
inline constexpr std::size_t kMostShown = 120;

/// Text that came from outside (a file, another rank), made safe for a message or a terminal. Anything that could
/// control a terminal or hide or reorder text is escaped: control characters, line ends, direction marks, bytes that
/// are not UTF-8. Backslashes are escaped too, so that no text can imitate an escape. Text longer than `most` is cut at
/// a whole character and ends with "...".
std::string shown(std::string_view text, std::size_t most = kMostShown);
/// The text of shown() in single quotes.
std::string in_quotes(std::string_view text, std::size_t most = kMostShown);

/// A size in bytes as text: "900 B", "8.2 KiB", "264.1 MiB".
std::string size_text(std::uint64_t bytes);
/// A time in seconds as text: "1.5 s".
std::string seconds_text(std::chrono::duration<double> time);
/// A number with its noun: "1 rank", "2 ranks".
std::string counted(std::int64_t count, std::string_view what);

/// Message text for a thrown object that is not a std::exception.
inline constexpr const char* kNoStdException = "an exception that is not a std::exception";

}  // namespace muster
