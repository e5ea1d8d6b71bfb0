#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "mlflow_batch.h"
#include "mlflow_client.h"
#include "mlflow_run.h"

namespace muster::track {

/// Sends the waiting lines of a run to its server, in order, and records on disk what the server has, so that another
/// process can continue. Values that the server does not accept are left out, which is reported once per kind (MU535,
/// MU536).
/// Thread safety: one thread at a time.
class MlflowDelivery {
 public:
  /// `waiting`: size in bytes of the file of waiting lines, some of which an earlier process may have sent; nullopt if
  /// there was no such process.
  MlflowDelivery(MlflowRun run, std::filesystem::path folder, MlflowClient client, std::optional<uint64_t> waiting);

  const MlflowRun& run() const noexcept { return run_; }
  const HttpServer& server() const noexcept { return client_.server(); }
  /// Creates the run on the server, or finds it, and sets its status to running if `is_running`. Later calls do
  /// nothing.
  /// Throws: MlflowError.
  void open(bool is_running);
  bool is_open() const noexcept { return open_; }
  /// Sends the first batch of these lines, which start at run().sent in the file.
  /// Throws: MlflowError; Error (MU422) if the result cannot be recorded.
  void send(std::string_view lines);
  /// Notes that the file of waiting lines is empty again.
  void start_over();
  /// The number of values and files that the server did not accept.
  int64_t refused() const noexcept { return refused_; }
  /// Reports the run as killed if it is not known how it ended. Requires: is_open(). Throws: MlflowError.
  void end_killed();

 private:
  void set_run(const MlflowClient::Found& found);
  void deliver(const MlflowBatch& batch);
  void log(const char* kind, const nlohmann::json& items);
  void end(std::string_view status, int64_t end_time);
  void put_artifacts(const std::string& name);
  void put_artifact(const std::string& name, const std::filesystem::path& file);
  void leave_out_artifact(const std::string& name, const std::string& reason);
  void report(const char* id, const std::string& kind, const std::string& sentence);

  MlflowRun run_;
  const std::filesystem::path folder_;
  MlflowClient client_;
  bool open_ = false;
  bool uncertain_;    // the server may have the batch that was sent last
  int attempts_ = 0;  // attempts for the file that is being sent
  int64_t refused_ = 0;
  std::set<std::string> reported_;
};

}  // namespace muster::track
