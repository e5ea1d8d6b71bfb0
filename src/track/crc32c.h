#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster::track {

using Crc32cTable = std::array<std::array<uint32_t, 256>, 8>;

constexpr Crc32cTable crc32c_table() {
  Crc32cTable table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    table[0][i] = crc;
  }
  for (uint32_t i = 0; i < 256; ++i)
    for (std::size_t k = 1; k < 8; ++k) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
  return table;
}

inline constexpr Crc32cTable kCrc32cTable = crc32c_table();

/// The CRC-32C (Castagnoli) of the bytes. Source: RFC 3720, appendix B.4.
inline uint32_t crc32c(std::string_view bytes) noexcept {
  uint32_t crc = ~0u;
  const auto byte = [&](std::size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])); };
  // Eight bytes at a time: each has a table of its contribution when the others follow it.
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    crc ^= byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24;
    crc = kCrc32cTable[7][crc & 255] ^ kCrc32cTable[6][crc >> 8 & 255] ^ kCrc32cTable[5][crc >> 16 & 255] ^
          kCrc32cTable[4][crc >> 24] ^ kCrc32cTable[3][byte(at + 4)] ^ kCrc32cTable[2][byte(at + 5)] ^
          kCrc32cTable[1][byte(at + 6)] ^ kCrc32cTable[0][byte(at + 7)];
  }
  for (; at < bytes.size(); ++at) crc = crc >> 8 ^ kCrc32cTable[0][(crc ^ byte(at)) & 255];
  return ~crc;
}

/// The masked CRC in TensorFlow's records: without the mask, the CRC of bytes that contain CRCs would be weak. Source:
/// tensorflow/core/lib/hash/crc32c.h, Mask().
inline uint32_t masked_crc32c(std::string_view bytes) noexcept {
  const auto crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

}  // namespace muster::track
