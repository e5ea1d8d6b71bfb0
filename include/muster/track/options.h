#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace muster {

class Tracker;

/// A tracker by name, or a custom object.
using TrackerChoice = std::variant<std::string, std::shared_ptr<Tracker>>;

/// Where the tracker "mlflow" logs to. Empty options are taken from MLflow's variables. User, password and token come
/// from MLFLOW_TRACKING_USERNAME and _PASSWORD, from MLFLOW_TRACKING_TOKEN, or from the URI; they are never written to
/// a file.
struct MlflowOptions {
  std::string experiment_name = {};  ///< else MLFLOW_EXPERIMENT_NAME or _ID, else the name of the run, else "Default"
  std::string run_id = {};           ///< id of a run to continue; else MLFLOW_RUN_ID, else a new run
  std::string run_name = {};         ///< else MLFLOW_RUN_NAME, else the name of the run's folder
  std::map<std::string, std::string> tags = {};  ///< added to those of MLFLOW_TAGS, a JSON object
  std::string tracking_uri = {};                 ///< http://HOST:PORT; else MLFLOW_TRACKING_URI
};

/// How a run is tracked. Its files are in root/name/version, as in Lightning.
struct TrackersOptions {
  /// Limit of values that wait in memory, in bytes (8 MiB); further values wait in a file in the run's folder.
  std::size_t capacity = std::size_t{8} << 20;
  /// "csv", "jsonl", "mlflow", "tensorboard", and objects of classes that derive from Tracker.
  std::vector<TrackerChoice> log_with = {"csv"};
  MlflowOptions mlflow = {};
  std::string name = {};
  std::filesystem::path root = "logs";
  /// How long finish(), flush() and the destructor wait for the disk.
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  /// Empty: version_N, with N one more than the highest existing number. Otherwise the folder's name; if the folder
  /// exists, its files are continued.
  std::string version = {};
};

}  // namespace muster
