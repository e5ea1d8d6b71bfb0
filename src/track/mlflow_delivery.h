#pragma once

#include <set>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "http.h"
#include "mlflow_run.h"

namespace muster::track {

/// Waiting lines that are sent together: metrics of many lines, or one line of another kind.
struct MlflowBatch {
  std::string artifact = {};
  int64_t end_time = 0;
  nlohmann::json metrics = nlohmann::json::array();
  nlohmann::json params = nlohmann::json::array();
  std::size_t size = 0;     ///< size of its lines in bytes
  std::string status = {};  ///< final status of the run
  int unreadable = 0;       ///< number of lines that this tracker did not write
};

/// The first batch of these whole lines.
MlflowBatch first_batch(std::string_view lines);

/// A failed request to an MLflow server. The message contains no secrets.
class MlflowError : public std::runtime_error {
 public:
  explicit MlflowError(const std::string& reason, long status = 0, std::string code = {})
      : std::runtime_error(reason), code(std::move(code)), status(status) {}
  /// Whether the server will never accept the request, as opposed to being unavailable for now.
  bool is_refusal() const noexcept { return status == 400 || status == 413 || status == 422; }

  std::string code;  ///< MLflow's error code, such as RESOURCE_DOES_NOT_EXIST
  long status;       ///< HTTP status; 0: there was no reply
};

/// The calls of MLflow's REST API 2.0 that a run needs. All throw MlflowError. Thread safety: one thread at a time.
/// Source: the pages of its REST API.
class MlflowClient {
 public:
  MlflowClient(HttpServer server, std::chrono::milliseconds timeout, const std::atomic<bool>* stop)
      : connection_(std::move(server), timeout, stop) {}

  /// A run as the server describes it.
  struct Found {
    std::string artifact_uri, experiment_id, run_id;
  };

  const HttpServer& server() const noexcept { return connection_.server(); }
  /// The id of the experiment of that name, which is created if it does not exist.
  std::string experiment(const std::string& name);
  /// Creates a run in its experiment, with its name, start and tags.
  Found create_run(const MlflowRun& run);
  /// The run with that tag, or a result without an id.
  Found find_run(const std::string& experiment_id, const std::string& tag, const std::string& value);
  Found get_run(const std::string& run_id);
  /// Whether this is the latest value of its metric on the server.
  bool has_metric(const std::string& run_id, const nlohmann::json& metric);
  /// `kind` is "metrics" or "params".
  void log_batch(const std::string& run_id, const char* kind, const nlohmann::json& items);
  /// Leaves out the end time if it is 0.
  void update_run(const std::string& run_id, std::string_view status, int64_t end_time);
  /// Whether the server itself stores files of runs with this address.
  bool takes_artifacts(std::string_view artifact_uri) const;
  /// Requires: takes_artifacts().
  void put_artifact(std::string_view artifact_uri, const std::string& name, const std::filesystem::path& file);

 private:
  nlohmann::json call(const char* method, const std::string& path, const nlohmann::json& body);
  nlohmann::json content_of(const HttpReply& reply) const;

  HttpConnection connection_;
};

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
