#pragma once

#include <string>
#include <vector>

#include "commands.h"
#include "config_file.h"
#include "run_flags.h"

namespace muster::cli {

/// The flags of `muster launch`: those of `accelerate launch` and of `muster run`, in one CLI11 application. Not
/// movable.
class LaunchFlags {
 public:
  /// `arguments` decide which groups the help shows.
  LaunchFlags(CLI::App& app, const Arguments& arguments);
  const Flags& ours() const noexcept { return ours_; }
  /// The flags given with Accelerate's names, by those names.
  options::RawOptions theirs() const;
  /// All flags that exist.
  static std::vector<options::Description> all();

 private:
  Flags ours_, theirs_;
};

/// The sources that a launch would use.
struct LaunchSources {
  options::Sources sources = {};
  std::string path = {};  ///< path of the configuration file; empty: none
  FileKind kind = FileKind::muster;
  std::vector<std::string> notes = {};
};

/// Reads the file of --config_file, otherwise of MUSTER_CONFIG, otherwise the user's file, otherwise Accelerate's
/// default file.
/// Throws: ConfigError as read_config() and translated_config().
LaunchSources launch_sources(const LaunchFlags& flags);

/// Parses the flags before the program; returns all words from the first one that is not a flag. Throws: UsageError
/// (MU006).
Arguments parse_launch(CLI::App& app, const Arguments& arguments, std::string_view command);

/// The user's configuration file: $XDG_CONFIG_HOME/muster/config.yaml, or ~/.config/muster/config.yaml.
std::string user_config_path(const Environment& variables);
/// Accelerate's configuration file: $HF_HOME/accelerate/default_config.yaml, or below ~/.cache/huggingface.
std::string accelerate_config_path(const Environment& variables);

}  // namespace muster::cli
