#pragma once

#include <thread>

#include "append_file.h"
#include "base/mutex.h"
#include "mlflow_delivery.h"
#include "muster/base/environment.h"
#include "muster/track/options.h"
#include "muster/track/trackers.h"
#include "track/mlflow_run.h"

namespace muster::track {

// Why: docs/decisions/0122-a-tracker-with-a-server.md.

/// Time limits and pauses of the tracker.
struct MlflowTimes {
  std::chrono::milliseconds at_end = std::chrono::seconds(5);
  std::chrono::milliseconds call = std::chrono::seconds(10);
  std::chrono::milliseconds first_pause = std::chrono::milliseconds(250);  ///< pause after a failure; doubles each time
  std::chrono::milliseconds longest_pause = std::chrono::seconds(30);
};

/// Throws: ConfigError (MU530, MU532) if neither options nor variables name a server, or there is no libcurl.
void check_mlflow(const TrackersOptions& options, const Environment& variables);

/// Logs to an MLflow server. Values go to mlflow.waiting.jsonl in the run's folder, from which a separate thread sends
/// them, so that a slow or dead server delays nobody. Lines that are not sent soon after the end of the run stay there,
/// and upload_run() sends them.
class MlflowTracker final : public Tracker {
 public:
  /// Throws: ConfigError (MU421, MU530, MU532); Error (MU537).
  MlflowTracker(const std::filesystem::path& folder, const TrackersOptions& options, const Environment& variables,
                MlflowTimes times = {});
  ~MlflowTracker() override { stop(); }

  std::string name() const override { return "mlflow"; }
  void log_hyperparams(std::span<const LoggedValue> values) override;
  void log(const LoggedStep& step) override;
  void log_artifact(std::string_view name, const std::filesystem::path& copy) override;
  void flush() override;
  void finish(RunStatus status) override;

 private:
  void add(const std::string& line);
  void add_image(const LoggedValue& image, int64_t step);
  void send_all();
  std::string failure_of_sending(std::string_view lines);
  bool has_sent_all() const MUSTER_REQUIRES(mutex_);
  bool wait_until_sent();
  void report_failure(const std::string& reason) MUSTER_REQUIRES(mutex_);
  Notice notice();
  void clear_what_is_sent() MUSTER_REQUIRES(mutex_);
  void stop();

  const std::filesystem::path folder_;
  const MlflowTimes times_;
  std::set<std::string, std::less<>> noticed_;
  std::atomic<bool> stop_{false};
  mutable base::Mutex mutex_;
  base::Condition changed_, sent_;
  AppendFile file_ MUSTER_GUARDED_BY(mutex_);
  bool hurry_ MUSTER_GUARDED_BY(mutex_) = false;
  bool reported_ MUSTER_GUARDED_BY(mutex_) = false;
  // End of the lines that the server has; nullopt until it has the run.
  std::optional<uint64_t> sent_end_ MUSTER_GUARDED_BY(mutex_);
  MlflowDelivery delivery_;  // used by the thread
  std::thread thread_;
};

}  // namespace muster::track
