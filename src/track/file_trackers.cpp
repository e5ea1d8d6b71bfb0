#include "muster/track/detail/file_trackers.h"

#include <algorithm>

#include "csv_tracker.h"
#include "json_lines_tracker.h"
#include "muster/base/detail/known_names.h"
#include "muster/base/detail/shown.h"
#include "muster/base/error.h"
#include "tensorboard_tracker.h"

namespace muster {

std::vector<std::string> tracker_names() { return {"csv", "jsonl", "tensorboard"}; }

void check_tracker_name(std::string_view name) {
  const auto names = tracker_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw ConfigError("MU420", "there is no tracker " + in_quotes(name) + known_names(name, names) +
                                   "; or give an object of a class that derives from muster::Tracker");
}

std::shared_ptr<Tracker> make_file_tracker(std::string_view name, const std::filesystem::path& folder) {
  check_tracker_name(name);
  if (name == "csv") return std::make_shared<track::CsvTracker>(folder);
  if (name == "jsonl") return std::make_shared<track::JsonLinesTracker>(folder);
  return std::make_shared<track::TensorBoardTracker>(folder);
}

}  // namespace muster
