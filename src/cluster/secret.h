#pragma once  // for other rooms

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>

#include "muster/base/environment.h"

namespace muster::cluster {

// Why: docs/decisions/0043-who-may-join.md.

/// The secret shared by the ranks of one job. It has no operator<< for streams, so that no log shows it by mistake.
class Secret {
 public:
  /// An empty secret.
  Secret() = default;
  /// Strips surrounding white space. Throws: ConfigError (MU068) if fewer than 32 characters are left.
  explicit Secret(const std::string& text);

  bool is_given() const noexcept { return !text_.empty(); }
  /// The secret itself: for a signature, or the environment of a rank.
  const std::string& reveal() const noexcept { return text_; }

 private:
  std::string text_;
};

/// A new secret: 32 bytes from the system's random generator. Throws: as random_hex().
Secret make_secret();

/// The secret in a file. Throws: ConfigError (MU068) if it cannot be read, or if other users may read or write it.
Secret read_secret_file(const std::filesystem::path& path);

/// The secret in the file that MUSTER_SECRET_FILE names, or in MUSTER_SECRET; empty if neither is set.
/// Throws: ConfigError (MU068).
Secret read_secret(const Environment& variables);

inline constexpr std::size_t kSignatureBytes = 32;
using Signature = std::array<std::uint8_t, kSignatureBytes>;

/// HMAC-SHA256 with the job's secret. Each part is signed with its length and its index, so that no two lists of parts
/// have the same signature; the first part gives the purpose.
/// Requires: the secret is not empty.
Signature sign(const Secret& secret, std::initializer_list<std::string_view> parts);

/// Compares in constant time.
bool is_signature(const Signature& expected, std::span<const std::uint8_t> bytes) noexcept;

}  // namespace muster::cluster
