#include "base/text.h"
#include "muster/base/error.h"
#include "muster/device/options.h"
#include "muster/format/options.h"
#include "muster/precision/options.h"
#include "muster/runtime/options.h"

namespace muster {

Devices::Devices(std::initializer_list<int> indices) : text_(joined_by(",", indices)) {
  // One index is still a list: "3," and not the count 3.
  if (indices.size() == 1) text_ += ",";
}

namespace {

constexpr std::pair<std::string_view, double> kUnits[] = {
    {"", 1},           {"K", 1e3},           {"M", 1e6},
    {"G", 1e9},        {"T", 1e12},          {"KI", 1024.0},
    {"MI", 1048576.0}, {"GI", 1073741824.0}, {"TI", 1099511627776.0}};

[[noreturn]] void refuse_size(std::string_view words) {
  throw ConfigError("MU206",
                    "\"" + std::string(words) +
                        "\" is not a number of bytes: write a number and B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, "
                        "such as \"10GB\"");
}

}  // namespace

ByteSize::ByteSize(std::string_view words) : bytes_(0) {
  double number = 0;
  const auto [rest, error] =
      std::from_chars(words.data(), words.data() + words.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !(number >= 0)) refuse_size(words);
  std::string_view unit(rest, static_cast<std::size_t>(words.data() + words.size() - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const bool bits = unit.ends_with('b');
  if (!unit.empty()) {
    if (!bits && !unit.ends_with('B')) refuse_size(words);
    unit.remove_suffix(1);
  }
  for (const auto& [name, size] : kUnits) {
    if (upper_case(std::string(unit)) != name) continue;
    const double bytes = number * size / (bits ? 8 : 1);
    if (bytes >= 9.2e18) refuse_size(words);
    bytes_ = static_cast<std::uint64_t>(bytes);
    return;
  }
  refuse_size(words);
}

KeepMemory KeepMemory::parse(std::string_view name) {
  if (const auto word = Word::parse(name)) return KeepMemory(*word);
  throw ConfigError("MU002", "keep_memory (MUSTER_KEEP_MEMORY) is '" + std::string(name) + "'" +
                                 known_ones(std::array{"auto", "on (1)", "off (0)"}));
}

}  // namespace muster

namespace muster::precision {

void a_number_for_a_precision_is_16_32_or_64(int bits) {
  throw ConfigError("MU130", "unknown precision " + std::to_string(bits) +
                                 "; the known numbers are 16 (16-mixed), 32 (32-true) and 64 (64-true)");
}

void unknown_precision(std::string_view name) {
  throw ConfigError("MU130", "unknown precision '" + std::string(name) + "'" +
                                 known_ones(kPrecisionNames, [](const auto& entry) { return entry.name; }));
}

}  // namespace muster::precision
