#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "muster/base/detail/environment.h"
#include "muster/track/options.h"

namespace muster::track {

/// A run at an MLflow server, and how much of the file of waiting lines it has: the content of mlflow.json.
struct MlflowRun {
  std::string artifact_uri = {};     ///< empty until the server said it
  bool ended = false;                ///< the server knows how it ended
  std::string experiment_id = {};    ///< empty until the server said it
  std::string experiment_name = {};  ///< empty: experiment_id was given
  std::string key = {};              ///< a tag by which the run is found again
  std::string run_id = {};           ///< empty until there is one
  std::string run_name = {};
  uint64_t sending = 0;    ///< end of the lines that were being sent
  uint64_t sent = 0;       ///< end of the lines that the server has
  int64_t start_time = 0;  ///< in milliseconds since 1970
  std::map<std::string, std::string> tags = {};
  std::string tracking_uri = {};  ///< without user and password
};

/// Where the lines wait that the server does not have.
std::filesystem::path waiting_lines_path(const std::filesystem::path& folder);

/// A run of the folder as the options and MLflow's variables describe it. Throws: ConfigError (MU530) for tags that are
/// none.
MlflowRun new_run(const std::filesystem::path& folder, const TrackersOptions& options, const std::string& tracking_uri,
                  const Environment& variables);
/// The run of the folder's mlflow.json, or else a new one.
/// Throws: as new_run(); as load_run(); ConfigError (MU530) if these are of different runs or servers.
MlflowRun continued_run(const std::filesystem::path& folder, MlflowRun wanted);

/// The folder's mlflow.json, if it is there. Throws: Error (MU537) if it is damaged.
std::optional<MlflowRun> load_run(const std::filesystem::path& folder);
/// Throws: Error (MU422).
void save_run(const MlflowRun& run, const std::filesystem::path& folder);

}  // namespace muster::track
