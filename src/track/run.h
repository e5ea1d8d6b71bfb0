#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "muster/track/trackers.h"
#include "record.h"

namespace muster::track {

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
  void finish(RunStatus status);
  void finish(RunStatus status, std::chrono::milliseconds timeout);

 private:
  bool is_elsewhere() const;

  std::filesystem::path folder_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Writing> writing_;
  std::atomic<int64_t> next_step_{0};
  const int exceptions_before_;
  const pid_t process_;
  std::mutex ending_;
  std::future<void> ended_;
  std::thread thread_;
};

/// Makes the run finish when the process exits or an uncaught exception ends it.
void finish_at_exit(const std::shared_ptr<Run>& run);

}  // namespace muster::track
