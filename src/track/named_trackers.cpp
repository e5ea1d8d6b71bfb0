#include "track/named_trackers.h"

#include <algorithm>
#include <array>

#include "base/known_names.h"
#include "base/shown.h"
#include "mlflow_server.h"
#include "mlflow_tracker.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "track/file_trackers.h"

namespace muster {
namespace {

/// Other names that Accelerate and Lightning know.
constexpr std::array<std::string_view, 10> kOthers{"aim",     "all",     "clearml", "comet",   "comet_ml",
                                                   "dvclive", "neptune", "swanlab", "trackio", "wandb"};

void refuse_others(std::string_view name) {
  if (std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end()) return;
  if (name == "all")
    throw ConfigError("MU531", "log_with takes no 'all'; name each tracker, such as \"csv\", \"mlflow\"");
  throw ConfigError("MU531",
                    "Muster has no tracker " + in_quotes(name) +
                        ": its service has no interface for C++. Log with 'mlflow', 'tensorboard', 'jsonl' or 'csv', "
                        "or write your own: a class that derives from muster::Tracker with the three functions "
                        "name(), log() and finish(), of which log_with takes an object");
}

track::MlflowTimes times_for(const TrackersOptions& options) {
  track::MlflowTimes times;
  times.at_end = std::min(times.at_end, options.timeout / 2);  // Run::finish() waits for all of it
  return times;
}

}  // namespace

std::vector<std::string> tracker_names() { return {"csv", "jsonl", "mlflow", "tensorboard"}; }

void check_tracker(std::string_view name, const TrackersOptions& options) {
  refuse_others(name);
  const auto names = tracker_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw ConfigError("MU420", "there is no tracker " + in_quotes(name) + known_names(name, names) +
                                   "; or give an object of a class that derives from muster::Tracker");
  if (name == "mlflow") track::check_mlflow(options, Environment::of_process());
}

std::shared_ptr<Tracker> make_tracker(std::string_view name, const std::filesystem::path& folder,
                                      const TrackersOptions& options) {
  check_tracker(name, options);
  if (name == "csv") return std::make_shared<track::CsvTracker>(folder);
  if (name == "jsonl") return std::make_shared<track::JsonLinesTracker>(folder);
  if (name == "tensorboard") return std::make_shared<track::TensorBoardTracker>(folder);
  return std::make_shared<track::MlflowTracker>(folder, options, Environment::of_process(), times_for(options));
}

}  // namespace muster
