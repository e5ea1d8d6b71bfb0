#pragma once

#include <cstddef>

namespace muster::cluster {

/// What lies where in the memory between a rank and its launcher.
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kStandingBytes = 1024;              ///< how the rank fares, see report.cpp
inline constexpr std::size_t kLauncherAt = kStandingBytes;       ///< the process that says the last words
inline constexpr std::size_t kWordsAt = kLauncherAt + 16;        ///< the last words, ended by a zero

}  // namespace muster::cluster
