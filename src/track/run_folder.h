#pragma once

#include <filesystem>
#include <string>

namespace muster {

/// The location of a run's files: root/name/version_N, as in Lightning.
struct RunFolderOptions {
  std::string name = {};  ///< name of the experiment; empty: root/version_N
  std::filesystem::path root = "logs";
  /// Name of the version's folder. Empty: "version_N", with N one more than the highest existing number. A folder that
  /// exists already is used again, and the files of the earlier run are continued.
  std::string version = {};
};

/// Creates the folder and returns it. Two programs that ask at the same time get different ones.
/// Throws: ConfigError (MU421) if it cannot be created; (MU425) if name or version would lead out of the root.
std::filesystem::path make_run_folder(const RunFolderOptions& options);

}  // namespace muster

namespace muster::track {

/// Copies a file or a whole folder to folder/artifacts/name, replacing what exists there; returns the new path.
/// Throws: ConfigError (MU457).
std::filesystem::path copy_artifact(const std::filesystem::path& file, const std::filesystem::path& folder,
                                    const std::string& name);

}  // namespace muster::track
