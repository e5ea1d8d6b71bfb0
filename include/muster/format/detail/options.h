#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

/// How much of a written file must be on the medium before it replaces the earlier one.
/// With every choice, a process that dies leaves the old file or the new one, never a torn one; the choice determines
/// what is left when the machine loses power.
enum class Durability : std::uint8_t {
  none,  ///< Leave it to the kernel: the fastest, and what most savers do.
  file,  ///< The bytes are on the medium before the name points at them.
  full,  ///< The bytes and the name are on the medium when the call returns.
};

/// A number of bytes, given as a number or in words: "10GB" is 10 * 10^9, "5GiB" is 5 * 2^30.
/// Units are B, KB, MB, GB, TB and KiB, MiB, GiB, TiB; a lower-case final b means bits, so "8Gb" is "1GB".
/// No unit means bytes.
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

/// The form to which a file of weights is converted.
enum class WeightForm : std::uint8_t {
  torch,        ///< One file of Python's torch.save.
  safetensors,  ///< One safetensors file.
  folder,       ///< A folder of safetensors files with an index.
};

/// Options for converting files of weights.
struct ConvertOptions {
  Durability durability = Durability::full;
  bool leave_out = false;                       ///< Leave out objects that are not understood, instead of failing.
  ByteSize max_shard_size = 10'000'000'000;     ///< Limit for each file of a folder; a single larger tensor gets a
                                                ///< file of its own.
  int model = -1;                               ///< Which model's weights to convert, from a checkpoint with several
                                                ///< models.
  std::string part = {};                        ///< Convert only the part at this path: names and list positions,
                                                ///< joined by "/".
  std::string strip = {};                       ///< Prefix to remove from names, such as "module.".
  std::optional<WeightForm> to = std::nullopt;  ///< The form to write; if unset, the name of the output determines
                                                ///< it.
};

}  // namespace muster
