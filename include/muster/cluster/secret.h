#pragma once

#include <filesystem>
#include <string>

#include "muster/base/environment.h"

namespace muster::cluster {

/// What the ranks of a job know and nobody else does. It writes itself to no stream, so that it reaches no log by mistake.
class Secret {
 public:
  /// None.
  Secret() = default;
  /// Blanks around it do not count. Throws: ConfigError (MU068) if fewer than 32 characters are left.
  explicit Secret(const std::string& text);

  bool is_given() const noexcept { return !text_.empty(); }
  /// The secret itself: for a signature, or the environment of a rank.
  const std::string& reveal() const noexcept { return text_; }

 private:
  std::string text_;
};

/// A new one: 32 bytes of the system's generator. Throws: as random_hex().
Secret make_secret();

/// The one in a file. Throws: ConfigError (MU068) if it cannot be read, or if others may read it.
Secret read_secret_file(const std::filesystem::path& path);

/// The one in the file that MUSTER_SECRET_FILE names, or in MUSTER_SECRET; none if neither is set. Throws: ConfigError (MU068).
Secret read_secret(const Environment& variables);

}  // namespace muster::cluster
