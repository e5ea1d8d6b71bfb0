#pragma once  // for other rooms

#include "muster/track/logged_value.h"

namespace muster {

/// Encodes pixels as an uncompressed PNG file. They are given row by row, with one byte per channel: 1 channel is gray,
/// 3 are red, green and blue, 4 these and opacity.
/// Throws: UsageError (MU455) for other numbers of channels, an empty image, or another number of bytes.
std::vector<uint8_t> encode_png(std::span<const uint8_t> pixels, const ImageSize& size, int channels);

}  // namespace muster
