#pragma once  // for other rooms

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace muster {

/// Polynomials, with their bits in reverse order: that of zip files and PNG, and Castagnoli's.
inline constexpr std::uint32_t kCrc32 = 0xEDB88320, kCrc32c = 0x82F63B78;

inline constexpr std::size_t kCrcSlices = 16;  // bytes per round
using CrcTables = std::array<std::array<std::uint32_t, 256>, kCrcSlices>;

/// Table k gives the remainder of a byte followed by k zero bytes, so that 16 bytes take 16 independent look-ups.
constexpr CrcTables crc_tables(std::uint32_t polynomial) {
  CrcTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? polynomial ^ value >> 1 : value >> 1;
    tables[0][byte] = value;
  }
  for (std::size_t slice = 1; slice < kCrcSlices; ++slice)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[slice][byte] = tables[slice - 1][byte] >> 8 ^ tables[0][tables[slice - 1][byte] & 0xFF];
  return tables;
}

/// The CRC of 32 bits with this polynomial. `before`: the CRC of the bytes before
/// these.
template <std::uint32_t kPolynomial>
std::uint32_t crc_of(std::string_view bytes, std::uint32_t before = 0) noexcept {
  static constexpr CrcTables kTables = crc_tables(kPolynomial);
  std::uint32_t value = ~before;
  const char* place = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= kCrcSlices; left -= kCrcSlices, place += kCrcSlices) {
    std::array<std::uint8_t, kCrcSlices> block;
    std::memcpy(block.data(), place, kCrcSlices);
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < kCrcSlices; ++i) {
      const std::uint8_t byte = i < 4 ? static_cast<std::uint8_t>(block[i] ^ value >> 8 * i) : block[i];
      next ^= kTables[kCrcSlices - 1 - i][byte];
    }
    value = next;
  }
  for (; left > 0; --left, ++place) value = value >> 8 ^ kTables[0][(value ^ static_cast<std::uint8_t>(*place)) & 0xFF];
  return ~value;
}

/// The CRC-32C (Castagnoli) of the bytes. Source: RFC 3720, appendix B.4.
inline std::uint32_t crc32c(std::string_view bytes) noexcept { return crc_of<kCrc32c>(bytes); }

/// The masked CRC in TensorFlow's records: without the mask, the CRC of bytes that contain CRCs would be weak. Source:
/// tensorflow/core/lib/hash/crc32c.h, Mask().
inline std::uint32_t masked_crc32c(std::string_view bytes) noexcept {
  const auto crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

}  // namespace muster
