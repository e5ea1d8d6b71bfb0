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

/// A tracker by name, or an object of the program's own.
using TrackerChoice = std::variant<std::string, std::shared_ptr<Tracker>>;

/// Where the tracker "mlflow" logs to. What is empty is taken from MLflow's variables. User, password and token come
/// from MLFLOW_TRACKING_USERNAME and _PASSWORD or MLFLOW_TRACKING_TOKEN, or stand in the URI; no file has them.
struct MlflowOptions {
  std::string experiment_name = {};  ///< else MLFLOW_EXPERIMENT_NAME or _ID, else the name of the run, else "Default"
  std::string run_id = {};           ///< of a run to go on with; else MLFLOW_RUN_ID, else a new one
  std::string run_name = {};         ///< else MLFLOW_RUN_NAME, else the name of the run's folder
  std::map<std::string, std::string> tags = {};  ///< beside those of MLFLOW_TAGS, an object of JSON
  std::string tracking_uri = {};                 ///< http://HOST:PORT; else MLFLOW_TRACKING_URI
};

/// How a run is tracked. Its files lie in root/name/version, as Lightning has them.
struct TrackersOptions {
  /// Bytes of values that wait in memory; more wait in a file in the run's folder.
  std::size_t capacity = std::size_t{8} << 20;
  /// "csv", "jsonl", "mlflow", "tensorboard", and objects of classes that derive from Tracker.
  std::vector<TrackerChoice> log_with = {"csv"};
  MlflowOptions mlflow = {};
  std::string name = {};
  std::filesystem::path root = "logs";
  /// How long finish(), flush() and the destructor wait for the disk.
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  /// Empty: version_N, with N one more than the highest there is. Otherwise the folder's name; if it exists, its files
  /// are continued.
  std::string version = {};
};

}  // namespace muster
