#pragma once

#include <algorithm>
#include <cstdint>

namespace muster::format {

/// Counts the memory that a file asks for by what it describes, so that a small file cannot ask for much: what it names
/// once it may refer to again and again.
class ByteLimit {
 public:
  /// `given`: bytes of the description.
  explicit ByteLimit(std::uint64_t given = 0) : most_(std::min(kMost, kFree + kEach * given)), left_(most_) {}

  /// False if that is too much.
  bool take(std::uint64_t bytes) noexcept {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  std::uint64_t most() const noexcept { return most_; }

 private:
  // One byte of a pickle may well stand for an object of some hundred bytes.
  static constexpr std::uint64_t kEach = 256, kFree = std::uint64_t{16} << 20, kMost = std::uint64_t{4} << 30;
  std::uint64_t most_, left_;
};

}  // namespace muster::format
