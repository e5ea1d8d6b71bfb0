#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace muster {

/// Counts of numbers in buckets, as TensorBoard shows them.
struct Histogram {
  int64_t count = 0;
  std::vector<double> counts = {};  ///< of each bucket
  std::vector<double> limits = {};  ///< upper end of each bucket, in ascending order
  double max = 0;
  double min = 0;
  double sum = 0;
  double sum_squares = 0;
};

/// The histogram of the finite ones of these values, in `buckets` buckets of equal width between the least and the
/// largest. Throws: UsageError (MU423) for fewer than one bucket.
Histogram make_histogram(std::span<const double> values, int buckets = 64);
Histogram make_histogram(std::span<const float> values, int buckets = 64);

/// An encoded image. The bytes are copied by the call that it is given to.
struct PngImage {
  std::span<const uint8_t> bytes;
};

/// One named value that is logged: a number, a bool, text, a histogram or an image. It refers to name, text, histogram
/// and bytes, and is meant for the duration of a call.
struct LoggedValue {
  using Data = std::variant<double, int64_t, bool, std::string_view, const Histogram*, PngImage>;

  template <std::same_as<Data> D>
  LoggedValue(std::string_view name_, const D& data_) : name(name_), data(data_) {}
  template <class T>
    requires std::integral<T> || std::floating_point<T>
  LoggedValue(std::string_view name_, T value) : name(name_) {
    if constexpr (std::same_as<T, bool>) data = value;
    else if constexpr (std::integral<T>) data = static_cast<int64_t>(value);
    else data = static_cast<double>(value);
  }
  LoggedValue(std::string_view name_, std::string_view text) : name(name_), data(text) {}
  LoggedValue(std::string_view name_, const char* text) : name(name_), data(std::string_view(text)) {}
  LoggedValue(std::string_view name_, const Histogram& histogram) : name(name_), data(&histogram) {}
  LoggedValue(std::string_view name_, PngImage image) : name(name_), data(image) {}

  std::string_view name;
  Data data;
};

/// The values of one call of log().
struct LoggedStep {
  int64_t step = 0;
  double time = 0;  ///< of the call, in seconds since 1970
  std::span<const LoggedValue> values = {};
};

/// Width and height, from the image's header.
struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
};
/// Throws: UsageError (MU423) if the bytes do not begin as a PNG file does.
ImageSize png_size(const PngImage& image);

}  // namespace muster
