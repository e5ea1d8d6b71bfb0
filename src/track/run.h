#pragma once

#include "muster/track/options.h"
#include "muster/track/trackers.h"

namespace muster {

/// Creates the folder root/name/version of the options, and returns it. Without a version, it is "version_N", with N
/// one more than the highest existing number; two programs that ask at the same time get different ones. Throws:
/// ConfigError (MU421) if it cannot be created; (MU425) if name or version would lead out of the root.
std::filesystem::path make_run_folder(const TrackersOptions& options);

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

namespace muster::track {

/// Copies a file or a whole folder to folder/artifacts/name, replacing what exists there; returns the new path.
/// Throws: ConfigError (MU457).
std::filesystem::path copy_artifact(const std::filesystem::path& file, const std::filesystem::path& folder,
                                    const std::string& name);

}  // namespace muster::track
