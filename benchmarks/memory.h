#pragma once

// The memory of this process by the kernel's count: its own pages and those it shares.

#include <fstream>
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

inline double resident_bytes() { return status_bytes("VmRSS"); }
/// The most since reset_peak().
inline double peak_bytes() { return status_bytes("VmHWM"); }
/// Segments that ranks share, all of them in each rank that maps them.
inline double shared_bytes() { return status_bytes("RssShmem"); }
inline void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace bench
