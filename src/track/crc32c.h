#pragma once

#include "base/crc.h"

namespace muster::track {

/// The CRC-32C (Castagnoli) of the bytes. Source: RFC 3720, appendix B.4.
inline uint32_t crc32c(std::string_view bytes) noexcept { return crc_of<kCrc32c>(bytes); }

/// The masked CRC in TensorFlow's records: without the mask, the CRC of bytes that contain CRCs would be weak. Source:
/// tensorflow/core/lib/hash/crc32c.h, Mask().
inline uint32_t masked_crc32c(std::string_view bytes) noexcept {
  const auto crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

}  // namespace muster::track
