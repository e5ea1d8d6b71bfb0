#pragma once

#include <sys/types.h>

#include <future>
#include <thread>

#include "base/mutex.h"
#include "muster/track/options.h"
#include "muster/track/trackers.h"
#include "record.h"

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

struct Writing;

/// The state that copies of a Trackers share: the run's folder, the queue, and the thread that passes records to the
/// trackers.
class Run {
 public:
  explicit Run(const TrackersOptions& options);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run();

  void add(Record::Kind kind, int only, std::span<const LoggedValue> values, std::optional<int64_t> step);
  void add_artifact(int only, const std::filesystem::path& file, const std::string& name);
  int index_of(std::string_view name) const;
  const std::filesystem::path& folder() const noexcept { return folder_; }
  bool flush();
  /// Waits for at most `timeout`, or the time-out of the options.
  void finish(RunStatus status, std::optional<std::chrono::milliseconds> timeout = {});

 private:
  bool is_elsewhere() const;

  std::filesystem::path folder_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Writing> writing_;
  std::atomic<int64_t> next_step_{0};
  const int exceptions_before_;
  const pid_t process_;
  base::Mutex ending_;
  std::future<void> ended_ MUSTER_GUARDED_BY(ending_);
  std::thread thread_;
};

/// Makes the run finish when the process exits or an uncaught exception ends it.
void finish_at_exit(const std::shared_ptr<Run>& run);

}  // namespace muster::track
