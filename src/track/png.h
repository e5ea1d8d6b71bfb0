#pragma once  // for other rooms

#include <cstdint>
#include <span>
#include <vector>

#include "muster/track/logged_value.h"

namespace muster {

/// The pixels as the bytes of a PNG file, row by row, each with one byte per channel: 1 is gray, 3 red, green and blue,
/// 4 these and opacity. They are not compressed.
/// Throws: UsageError (MU455) for other channels, an empty image, or another number of bytes.
std::vector<uint8_t> encode_png(std::span<const uint8_t> pixels, const ImageSize& size, int channels);

}  // namespace muster
