#pragma once

#include <functional>

#include "muster/base/environment.h"
#include "muster/track/logged_value.h"
#include "muster/track/options.h"

/// What a run of MLflow leaves in its folder: the lines that its server does not have yet, and mlflow.json.
namespace muster::track {

// MLflow's limits, in bytes or items. Sources: the pages of its REST API (Runs Log Batch), mlflow/utils/validation.py.
inline constexpr std::size_t kLongestName = 250;
inline constexpr std::size_t kLongestParam = 6000;
inline constexpr std::size_t kLongestTag = 5000;
inline constexpr std::size_t kMostMetrics = 1000;
inline constexpr std::size_t kMostParams = 100;

/// Reports a problem found while values become lines: a word for its kind, so that each kind is reported once, and a
/// sentence.
using Notice = std::function<void(std::string_view kind, const std::string& sentence)>;

int64_t milliseconds_since_1970();
/// The text cut to at most `most` bytes, at a whole character.
std::string cut_text(std::string_view text, std::size_t most);
/// The name in a form that MLflow accepts: letters, digits, "_-. /" and non-ASCII characters, a relative path without
/// "..", of at most 250 bytes. Longer names end with a number that distinguishes them.
std::string mlflow_name(std::string_view name);

/// The numbers and booleans of a step as lines of JSON, {"metrics":[{"key","value","timestamp","step"},...]}, each with
/// at most as many as MLflow takes at once. Numbers that JSON lacks are "NaN", "Infinity" and "-Infinity". Texts and
/// histograms are left out with a notice; images, without one.
std::vector<std::string> metric_lines(const LoggedStep& step, const Notice& notice);
/// Hyper-parameters as lines, {"params":[{"key","value"},...]}.
std::vector<std::string> param_lines(std::span<const LoggedValue> values, const Notice& notice);
/// The line for a file or folder in artifacts: {"artifact":"name"}.
std::string artifact_line(std::string_view name);
/// The line for the end of a run: {"end_time":...,"status":"FINISHED"}.
std::string status_line(std::string_view status);

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
