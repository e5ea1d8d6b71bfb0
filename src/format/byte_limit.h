#pragma once

#include <algorithm>
#include <cstdint>

namespace muster::format {

/// Limits the memory that the contents of a file may demand, in proportion to the size of the file: a small file can
/// refer to one object many times.
class ByteLimit {
 public:
  /// `given`: size of the file's description in bytes.
  explicit ByteLimit(std::uint64_t given = 0) : most_(std::min(kMost, kFree + kEach * given)), left_(most_) {}

  /// False if the limit is exceeded.
  bool take(std::uint64_t bytes) noexcept {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  std::uint64_t most() const noexcept { return most_; }

 private:
  // One byte of a pickle may stand for an object of several hundred bytes.
  static constexpr std::uint64_t kEach = 256, kFree = std::uint64_t{16} << 20, kMost = std::uint64_t{4} << 30;
  std::uint64_t most_, left_;
};

}  // namespace muster::format
