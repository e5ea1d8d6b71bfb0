#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "muster/track/options.h"
#include "muster/track/tracker.h"

namespace muster {

/// The names of Muster's trackers.
std::vector<std::string> tracker_names();
/// Throws: ConfigError (MU420), with the known names, for another name; (MU531) for the name of a service that Muster
/// does not log to; (MU530, MU532) if "mlflow" cannot work here.
void check_tracker(std::string_view name, const TrackersOptions& options);
/// The tracker of that name: "csv" writes metrics.csv, "jsonl" metrics.jsonl and "tensorboard" events.out.tfevents.*
/// into the folder; "mlflow" sends to a server.
/// Throws: as check_tracker(); ConfigError (MU421) if no file can be created in the folder.
std::shared_ptr<Tracker> make_tracker(std::string_view name, const std::filesystem::path& folder,
                                      const TrackersOptions& options);

}  // namespace muster
