#include "crc32c.h"

#include <array>
#include <cstddef>

namespace muster::track {
namespace {

using Table = std::array<std::array<uint32_t, 256>, 8>;

constexpr Table make_table() {
  Table table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    table[0][i] = crc;
  }
  for (uint32_t i = 0; i < 256; ++i)
    for (std::size_t k = 1; k < 8; ++k) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

// Processes eight bytes at a time: each has a table of its contribution when the others follow it.
uint32_t crc32c(std::string_view bytes) noexcept {
  uint32_t crc = ~0u;
  const auto byte = [&](std::size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])); };
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    crc ^= byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24;
    crc = kTable[7][crc & 255] ^ kTable[6][crc >> 8 & 255] ^ kTable[5][crc >> 16 & 255] ^ kTable[4][crc >> 24] ^
          kTable[3][byte(at + 4)] ^ kTable[2][byte(at + 5)] ^ kTable[1][byte(at + 6)] ^ kTable[0][byte(at + 7)];
  }
  for (; at < bytes.size(); ++at) crc = crc >> 8 ^ kTable[0][(crc ^ byte(at)) & 255];
  return ~crc;
}

}  // namespace muster::track
