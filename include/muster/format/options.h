#pragma once

#include <cstdint>
#include <string_view>

namespace muster {

/// How much of a written file must be on the medium before it replaces the earlier one.
/// With every choice, a process that dies leaves the old file or the new file, never a torn one. The choice determines
/// what remains after the machine loses power.
enum class Durability : std::uint8_t {
  none,  ///< Leave it to the kernel: the fastest, and what most savers do.
  file,  ///< The bytes are on the medium before the name points at them.
  full,  ///< The bytes and the name are on the medium when the call returns.
};

/// A number of bytes, given as a number or in words: "10GB" is 10 * 10^9, "5GiB" is 5 * 2^30. Units are B, KB, MB, GB,
/// TB and KiB, MiB, GiB, TiB; a lower-case final b means bits, so "8Gb" is "1GB". No unit means bytes.
class ByteSize {
 public:
  constexpr ByteSize(std::uint64_t bytes) : bytes_(bytes) {}  // NOLINT(google-explicit-constructor)
  /// Throws: ConfigError MU206 if the words are not understood.
  ByteSize(std::string_view words);                                   // NOLINT(google-explicit-constructor)
  ByteSize(const char* words) : ByteSize(std::string_view(words)) {}  // NOLINT(google-explicit-constructor)

  constexpr std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_;
};

}  // namespace muster
