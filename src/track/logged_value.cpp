#include "muster/track/logged_value.h"

#include <array>
#include <cmath>

#include "base/log.h"
#include "base/text.h"
#include "muster/base/error.h"

namespace muster {
namespace {

template <class T>
Histogram counted(std::span<const T> values, int buckets) {
  if (buckets < 1) throw UsageError("MU423", log::str("a histogram has at least one bucket, not ", buckets));
  Histogram result{.max = -std::numeric_limits<double>::infinity(), .min = std::numeric_limits<double>::infinity()};
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    ++result.count;
    result.max = std::max(result.max, value);
    result.min = std::min(result.min, value);
    result.sum += value;
    result.sum_squares += value * value;
  }
  if (result.count == 0) return {};
  // Halved, so that the width of the range between the lowest and the highest double is finite.
  const double half = result.max / 2 - result.min / 2;
  const int used = half > 0 ? buckets : 1;
  for (int i = 1; i < used; ++i) result.limits.push_back(result.min + half * (2.0 * i / used));
  result.limits.push_back(result.max);
  result.counts.resize(static_cast<std::size_t>(used));
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const double part = half > 0 ? (value / 2 - result.min / 2) / half : 0;
    result.counts[std::min(static_cast<std::size_t>(part * used), result.counts.size() - 1)] += 1;
  }
  return result;
}

}  // namespace

Histogram make_histogram(std::span<const double> values, int buckets) { return counted(values, buckets); }
Histogram make_histogram(std::span<const float> values, int buckets) { return counted(values, buckets); }

void LoggedValue::refuse_elements(std::string_view name, int64_t count) {
  throw UsageError("MU427", log::str("the tensor ", in_quotes(name), " has ", count,
                                     " elements, and a logged value is one number; log its mean, or a histogram"));
}

// Source: PNG (ISO/IEC 15948), 5.2 signature and 11.2.2 IHDR.
ImageSize png_size(const PngImage& image) {
  constexpr std::array<uint8_t, 8> kSignature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  constexpr std::array<uint8_t, 4> kHeader{'I', 'H', 'D', 'R'};
  const auto bytes = image.bytes;
  if (bytes.size() < 24 || !std::equal(kSignature.begin(), kSignature.end(), bytes.begin()) ||
      !std::equal(kHeader.begin(), kHeader.end(), bytes.begin() + 12))
    throw UsageError("MU423", log::str("the ", bytes.size(),
                                       " bytes of an image do not begin as a PNG file does; encode the image first"));
  const auto number = [&](std::size_t at) {
    int64_t value = 0;
    for (std::size_t i = at; i < at + 4; ++i) value = value << 8 | bytes[i];
    return value;
  };
  return {.height = number(20), .width = number(16)};
}

}  // namespace muster
