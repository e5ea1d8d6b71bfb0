#include <array>
#include <cstring>

#include "format/zip.h"

namespace muster::format {
namespace {

constexpr std::size_t kSlices = 16;  // bytes per round
using CrcTables = std::array<std::array<std::uint32_t, 256>, kSlices>;

/// Table k gives the remainder of a byte followed by k zero bytes, so that 16 bytes take 16 independent look-ups.
constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? 0xEDB88320u ^ value >> 1 : value >> 1;
    tables[0][byte] = value;
  }
  for (std::size_t slice = 1; slice < kSlices; ++slice)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[slice][byte] = tables[slice - 1][byte] >> 8 ^ tables[0][tables[slice - 1][byte] & 0xFF];
  return tables;
}

constexpr CrcTables kCrcTables = make_crc_tables();

}  // namespace

std::uint32_t crc32(std::string_view bytes, std::uint32_t before) {
  std::uint32_t value = ~before;
  const char* place = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= kSlices; left -= kSlices, place += kSlices) {
    std::array<std::uint8_t, kSlices> block;
    std::memcpy(block.data(), place, kSlices);
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < kSlices; ++i) {
      const std::uint8_t byte = i < 4 ? static_cast<std::uint8_t>(block[i] ^ value >> 8 * i) : block[i];
      next ^= kCrcTables[kSlices - 1 - i][byte];
    }
    value = next;
  }
  for (; left > 0; --left, ++place)
    value = value >> 8 ^ kCrcTables[0][(value ^ static_cast<std::uint8_t>(*place)) & 0xFF];
  return ~value;
}

}  // namespace muster::format
