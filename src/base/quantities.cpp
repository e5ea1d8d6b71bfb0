#include "base/quantities.h"

#include <cstddef>
#include <iterator>

#include "muster/base/format.h"

namespace muster {

std::string size_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return formatted("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return formatted("{:.1f} {}", value, kUnits[unit]);
}

std::string seconds_text(std::chrono::duration<double> time) { return formatted("{:.1f} s", time.count()); }

std::string counted(std::int64_t count, std::string_view what) {
  return formatted("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace muster
