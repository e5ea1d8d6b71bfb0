#pragma once

#include <cstdint>
#include <string_view>

namespace muster::track {

/// CRC-32C (Castagnoli). Source: RFC 3720, appendix B.4.
uint32_t crc32c(std::string_view bytes) noexcept;

/// As the records of TensorFlow store it, so that a CRC of bytes that hold CRCs is of use. Source: tensorflow/core/
/// lib/hash/crc32c.h, Mask().
inline uint32_t masked_crc32c(std::string_view bytes) noexcept {
  const auto crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

}  // namespace muster::track
