#pragma once

// The memory of this process by the kernel's count: its own pages, and the segments that it made for itself and others.

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace bench {

inline double status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != field + ":") continue;
    double kibibytes = 0;
    status >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

/// Resident bytes of the segments that this process made; each has the number of its maker's process in its name.
inline double own_segment_bytes() {
  const std::string own = "/memfd:muster " + std::to_string(::getpid()) + " ";
  std::ifstream maps("/proc/self/smaps");
  double bytes = 0;
  bool is_own = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first, second;
    words >> first >> second;
    // A segment that is mapped a second time, for reading, counts once.
    if (!first.ends_with(':')) is_own = second.starts_with("rw") && line.find(own) != std::string::npos;
    else if (is_own && first == "Rss:") bytes += std::stod(second) * 1024;
  }
  return bytes;
}

// Both count a segment in the rank that made it alone, so that their sums over the ranks count it once.
inline double resident_bytes() { return status_bytes("VmRSS") - status_bytes("RssShmem") + own_segment_bytes(); }
/// The most since reset_peak().
inline double peak_bytes() { return status_bytes("VmHWM") - status_bytes("RssShmem") + own_segment_bytes(); }
inline void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace bench
