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
  std::vector<double> counts = {};  ///< the count of each bucket
  std::vector<double> limits = {};  ///< upper end of each bucket, in ascending order
  double max = 0;
  double min = 0;
  double sum = 0;
  double sum_squares = 0;
};

/// The histogram of the finite values, in `buckets` buckets of equal width between the smallest and the largest value.
/// Throws: UsageError (MU423) for fewer than one bucket.
Histogram make_histogram(std::span<const double> values, int buckets = 64);
Histogram make_histogram(std::span<const float> values, int buckets = 64);

/// An encoded image. The call that takes it copies the bytes.
struct PngImage {
  std::span<const uint8_t> bytes;
};

/// A class with numel() and item<double>(), such as at::Tensor.
template <class T>
concept OneNumber = requires(const T& tensor) {
  { tensor.numel() } -> std::convertible_to<int64_t>;
  { tensor.template item<double>() } -> std::same_as<double>;
};

/// One named value that is logged: a number, a tensor with one element, a bool, text, a histogram or an image. It only
/// refers to name, tensor, text, histogram and bytes, so use it only for the duration of a call.
class LoggedValue {
 public:
  using Data = std::variant<double, int64_t, bool, std::string_view, const Histogram*, PngImage>;

  template <std::same_as<Data> D>
  LoggedValue(std::string_view name, const D& data) : name(name), data(data) {}
  template <class T>
    requires std::integral<T> || std::floating_point<T>
  LoggedValue(std::string_view name, T value) : name(name) {
    if constexpr (std::same_as<T, bool>) data = value;
    else if constexpr (std::integral<T>) data = static_cast<int64_t>(value);
    else data = static_cast<double>(value);
  }
  LoggedValue(std::string_view name, std::string_view text) : name(name), data(text) {}
  LoggedValue(std::string_view name, const char* text) : name(name), data(std::string_view(text)) {}
  LoggedValue(std::string_view name, const Histogram& histogram) : name(name), data(&histogram) {}
  LoggedValue(std::string_view name, PngImage image) : name(name), data(image) {}
  /// The call that takes this value reads the tensor, which waits for its device, and only if something is tracked.
  template <OneNumber T>
  LoggedValue(std::string_view name, const T& tensor) : name(name), tensor_(&tensor), read_(&number_of<T>) {}

  bool is_tensor() const noexcept { return tensor_ != nullptr; }
  /// The value, with a tensor replaced by its number. Throws: UsageError (MU427) unless the tensor has one element.
  LoggedValue read() const { return is_tensor() ? LoggedValue(name, read_(name, tensor_)) : *this; }

  std::string_view name;
  Data data;

 private:
  template <class T>
  static double number_of(std::string_view name, const void* tensor) {
    const auto& one = *static_cast<const T*>(tensor);
    if (one.numel() != 1) refuse_elements(name, one.numel());
    return one.template item<double>();
  }
  [[noreturn]] static void refuse_elements(std::string_view name, int64_t count);

  const void* tensor_ = nullptr;
  double (*read_)(std::string_view name, const void* tensor) = nullptr;
};

/// The values of one call of log().
struct LoggedStep {
  int64_t step = 0;
  double time = 0;  ///< time of the call, in seconds since 1970
  std::span<const LoggedValue> values = {};
};

/// The size of an image in pixels, from its header.
struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
};
/// Reads the size.
/// Throws: UsageError (MU423) if the bytes do not begin like a PNG file.
ImageSize png_size(const PngImage& image);

}  // namespace muster
