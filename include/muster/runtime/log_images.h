#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/track/trackers.h"

namespace muster {

/// Encodes an image as the bytes of a PNG file. `image`: [H, W], or [C, H, W] with 1, 3 or 4 channels; floating-point
/// values from 0 to 1 (others are clamped), or uint8 values from 0 to 255.
/// Throws: UsageError (MU455) for another tensor.
std::vector<uint8_t> encode_png(const at::Tensor& image);

/// Logs images by name: log_images(trackers, {{"samples", generated}}, step). A batch [N, C, H, W] is logged as
/// "samples/0", "samples/1" and so on. Tensors are read only on ranks that track; reading waits for their device.
/// Throws: as encode_png() and Trackers::log().
void log_images(const Trackers& trackers, std::initializer_list<std::pair<std::string_view, at::Tensor>> images,
                std::optional<int64_t> step = {});

}  // namespace muster
