#pragma once

#include <cstddef>

namespace muster::cluster {

/// Size of the page that a rank and its launcher share, in bytes. The constants below give its layout.
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kStatusBytes = 1024;          ///< size of the rank's status in bytes, see report.cpp
inline constexpr std::size_t kLauncherAt = kStatusBytes;   ///< offset of the id of the process that prints the message
inline constexpr std::size_t kWordsAt = kLauncherAt + 16;  ///< offset of the zero-terminated error message

}  // namespace muster::cluster
