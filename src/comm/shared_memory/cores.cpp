#include "comm/shared_memory/cores.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace muster::comm {
namespace {

namespace fs = std::filesystem;

/// Reads a CPU limit: "200000 100000" are two cores; "max 100000" means no limit.
int granted_by(const fs::path& file) {
  std::ifstream in(file);
  int64_t quota = 0, period = 0;
  if (!(in >> quota >> period) || period <= 0) return std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp<int64_t>(quota / period, 1, 1 << 20));
}

/// The process's control group below /sys/fs/cgroup, such as "/jobs/7".
std::string own_group() {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("0::")) return line.substr(3);
  return "/";
}

}  // namespace

CoreMask own_cores() {
  static_assert(sizeof(CoreMask) == sizeof(cpu_set_t));
  cpu_set_t set;
  CoreMask cores{};
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) std::memcpy(cores.data(), &set, sizeof(set));
  return cores;
}

CoreMask united(const CoreMask& a, const CoreMask& b) {
  CoreMask both = a;
  for (std::size_t word = 0; word < both.size(); ++word) both[word] |= b[word];
  return both;
}

int count(const CoreMask& cores) {
  int bits = 0;
  for (const uint64_t word : cores) bits += std::popcount(word);
  return bits;
}

int granted_cores() {
  const fs::path root = "/sys/fs/cgroup";
  int least = granted_by(root / "cpu.max");
  fs::path group = root;
  for (const auto& part : fs::path(own_group()).relative_path())
    least = std::min(least, granted_by((group /= part) / "cpu.max"));
  return least;
}

}  // namespace muster::comm
