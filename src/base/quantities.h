#pragma once  // for other rooms

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

/// A size in bytes as text: "900 B", "8.2 KiB", "264.1 MiB".
std::string size_text(std::uint64_t bytes);
/// A time in seconds as text: "1.5 s".
std::string seconds_text(std::chrono::duration<double> time);
/// A number with its noun: "1 rank", "2 ranks".
std::string counted(std::int64_t count, std::string_view what);

}  // namespace muster
