#include <torch/types.h>

#include "base/text.h"
#include "muster/base/error.h"
#include "muster/runtime/init_trackers.h"
#include "track/png.h"

namespace muster {
namespace {

[[noreturn]] void refuse(const at::Tensor& image) {
  throw UsageError("MU455",
                   "a tensor of sizes " + (image.defined() ? shape_text(image.sizes()) : "") +
                       " is not an image: give [H, W], or [C, H, W] with 1, 3 or 4 channels; several as a batch "
                       "[N, C, H, W]");
}

/// The image as rows of pixels, on the CPU.
at::Tensor pixels_of(const at::Tensor& image) {
  const auto here = image.detach().to(at::kCPU);
  const auto bytes =
      here.scalar_type() == at::kByte ? here : (here.to(at::kFloat).clamp(0, 1) * 255).round().to(at::kByte);
  return bytes.permute({1, 2, 0}).contiguous();
}

}  // namespace

std::vector<uint8_t> encode_png(const at::Tensor& image) {
  if (!image.defined() || image.numel() == 0) refuse(image);
  if (image.dim() == 2) return encode_png(image.unsqueeze(0));
  if (image.dim() != 3 || (image.size(0) != 1 && image.size(0) != 3 && image.size(0) != 4)) refuse(image);
  const auto pixels = pixels_of(image);
  return encode_png({pixels.data_ptr<uint8_t>(), static_cast<std::size_t>(pixels.numel())},
                    {.height = image.size(1), .width = image.size(2)}, static_cast<int>(image.size(0)));
}

void log_images(const Trackers& trackers, std::initializer_list<std::pair<std::string_view, at::Tensor>> images,
                std::optional<int64_t> step) {
  if (trackers.folder().empty()) return;
  std::vector<std::pair<std::string, std::vector<uint8_t>>> encoded;
  for (const auto& [name, image] : images) {
    if (!image.defined() || image.dim() != 4) {
      encoded.emplace_back(name, encode_png(image));
      continue;
    }
    for (int64_t i = 0; i < image.size(0); ++i)
      encoded.emplace_back(std::string(name) + "/" + std::to_string(i), encode_png(image[i]));
  }
  std::vector<LoggedValue> values;
  values.reserve(encoded.size());
  for (const auto& [name, bytes] : encoded) values.emplace_back(name, PngImage{bytes});
  trackers.log(values, step);
}

}  // namespace muster
