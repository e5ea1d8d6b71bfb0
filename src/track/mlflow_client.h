#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "http.h"

namespace muster::track {

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
  struct New {
    std::string experiment_id, run_name;
    int64_t start_time;
    const std::map<std::string, std::string>& tags;
  };

  const HttpServer& server() const noexcept { return connection_.server(); }
  /// The id of the experiment of that name, which is created if it does not exist.
  std::string experiment(const std::string& name);
  Found create_run(const New& run);
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

}  // namespace muster::track
