#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "muster/base/environment.h"
#include "muster/track/options.h"

namespace muster::track {

/// A run on an MLflow server, and how much of the file of waiting lines the server has: the content of mlflow.json.
struct MlflowRun {
  std::string artifact_uri = {};     ///< empty until the server has sent it
  bool ended = false;                ///< true if the server knows how the run ended
  std::string experiment_id = {};    ///< empty until the server has sent it
  std::string experiment_name = {};  ///< empty if experiment_id was given
  std::string key = {};              ///< value of the tag by which the run is found again
  std::string run_id = {};           ///< empty until the run exists
  std::string run_name = {};
  uint64_t sending = 0;    ///< end of the lines that were being sent
  uint64_t sent = 0;       ///< end of the lines that the server has
  int64_t start_time = 0;  ///< start of the run in milliseconds since 1970
  std::map<std::string, std::string> tags = {};
  std::string tracking_uri = {};  ///< URI of the server without user and password
};

/// The path of the file with lines that the server does not have yet.
std::filesystem::path waiting_lines_path(const std::filesystem::path& folder);

/// A new run of the folder, described by the options and MLflow's variables. Throws: ConfigError (MU530) for malformed
/// tags.
MlflowRun new_run(const std::filesystem::path& folder, const TrackersOptions& options, const std::string& tracking_uri,
                  const Environment& variables);
/// The run in the folder's mlflow.json or, if there is none, a new one.
/// Throws: as new_run(); as load_run(); ConfigError (MU530) if both are of different runs or servers.
MlflowRun continued_run(const std::filesystem::path& folder, MlflowRun wanted);

/// The run in the folder's mlflow.json; nullopt if there is none. Throws: Error (MU537) if the file is damaged.
std::optional<MlflowRun> load_run(const std::filesystem::path& folder);
/// Throws: Error (MU422).
void save_run(const MlflowRun& run, const std::filesystem::path& folder);

}  // namespace muster::track
