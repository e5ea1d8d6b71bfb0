#pragma once  // for other rooms

#include <filesystem>
#include <string>

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

}  // namespace muster::cluster
