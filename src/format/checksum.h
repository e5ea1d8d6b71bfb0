#pragma once  // for other rooms

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::format {

/// 64-bit XXH3 of bytes given in pieces; the division into pieces does not matter. Source: Yann Collet's xxHash, which
/// gives the same value on every machine.
/// Thread safety: one thread at a time.
class Checksum {
 public:
  Checksum();

  void update(const void* data, std::size_t bytes);
  /// The checksum of all bytes since construction or reset().
  std::uint64_t value() const;
  void reset();

 private:
  alignas(64) std::array<std::byte, 576> state_;
};

/// XXH3-64 of contiguous bytes.
std::uint64_t checksum_of(std::string_view bytes);

/// The value as 16 lowercase hexadecimal digits.
std::string to_hex(std::uint64_t value);
/// The value of exactly 16 such digits; otherwise nullopt.
std::optional<std::uint64_t> from_hex(std::string_view digits);

}  // namespace muster::format
