#pragma once

#include <filesystem>
#include <string>

namespace muster {

/// Where a run's files lie: root/name/version_N, as Lightning has them.
struct RunFolderOptions {
  std::string name = {};  ///< of the experiment; empty: root/version_N
  std::filesystem::path root = "logs";
  /// Empty: "version_N", with N one more than the highest there is. Otherwise the folder's name, which may exist: the
  /// files of the earlier run are then continued.
  std::string version = {};
};

/// Creates the folder and returns it. Two programs that ask at once get different ones.
/// Throws: ConfigError (MU421) if it cannot be created; (MU425) if name or version would lead out of the root.
std::filesystem::path make_run_folder(const RunFolderOptions& options);

}  // namespace muster
