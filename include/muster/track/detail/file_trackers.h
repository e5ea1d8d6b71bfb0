#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "muster/track/detail/tracker.h"

namespace muster {

/// The names of the trackers that write files into the run's folder.
std::vector<std::string> tracker_names();
/// Throws: ConfigError (MU420), listing the names, for another name.
void check_tracker_name(std::string_view name);
/// The tracker of that name: "csv" writes metrics.csv, "jsonl" metrics.jsonl, "tensorboard" events.out.tfevents.*.
/// Throws: ConfigError (MU420) for another name; (MU421) if the folder takes no file.
std::shared_ptr<Tracker> make_file_tracker(std::string_view name, const std::filesystem::path& folder);

}  // namespace muster
