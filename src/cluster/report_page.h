#pragma once

#include <cstddef>

namespace muster::cluster {

/// Layout of the page of memory that a rank and its launcher share.
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kStatusBytes = 1024;          ///< the rank's status, see report.cpp
inline constexpr std::size_t kLauncherAt = kStatusBytes;   ///< the process that prints the error message
inline constexpr std::size_t kWordsAt = kLauncherAt + 16;  ///< the error message, zero-terminated

}  // namespace muster::cluster
