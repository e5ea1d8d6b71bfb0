#include "mlflow_client.h"

#include <initializer_list>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/shown.h"
#include "percent.h"

namespace muster::track {
namespace {

using nlohmann::json;

constexpr std::size_t kMostShownOfReply = 300;  // limit on a quoted reply in bytes
constexpr std::string_view kArtifactScheme = "mlflow-artifacts:/";

[[noreturn]] void refuse_reply(long status) { throw MlflowError("it answers with what is no reply of MLflow", status); }

/// The value at this path in a reply.
const json& part_of(const json& reply, std::initializer_list<const char*> path) {
  const auto* part = &reply;
  for (const auto* name : path) {
    const auto found = part->find(name);
    if (found == part->end()) refuse_reply(200);
    part = &*found;
  }
  return *part;
}

std::string text_in(const json& reply, std::initializer_list<const char*> path) {
  const auto& text = part_of(reply, path);
  if (!text.is_string()) refuse_reply(200);
  return text.get<std::string>();
}

MlflowClient::Found run_in(const json& run) {
  return {.artifact_uri = text_in(run, {"info", "artifact_uri"}),
          .experiment_id = text_in(run, {"info", "experiment_id"}),
          .run_id = text_in(run, {"info", "run_id"})};
}

std::string member(const json& body, const char* name) {
  const auto found = body.is_object() ? body.find(name) : body.end();
  return body.is_object() && found != body.end() && found->is_string() ? found->get<std::string>() : "";
}

/// 64-bit integers may be sent as text.
bool same_number(const json& found, const json& wanted) {
  if (found.is_string() && wanted.is_number()) return found.get<std::string>() == wanted.dump();
  return found == wanted;
}

}  // namespace

json MlflowClient::content_of(const HttpReply& reply) const {
  const auto safe = [&](const std::string& text) { return shown(server().secrets.hidden_in(text), kMostShownOfReply); };
  if (!reply.failure.empty()) throw MlflowError(safe(reply.failure));
  auto body = json::parse(reply.body, nullptr, false);
  if (reply.status >= 200 && reply.status < 300) {
    if (!body.is_object()) refuse_reply(reply.status);
    return body;
  }
  auto words = "HTTP " + std::to_string(reply.status);
  if (const auto message = member(body, "message"); !message.empty()) words += ": " + safe(message);
  if (reply.status == 401 || reply.status == 403)
    words +=
        "; it wants credentials: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN";
  if (reply.status >= 300 && reply.status < 400) words += "; give the URI that it sends elsewhere to";
  throw MlflowError(words, reply.status, member(body, "error_code"));
}

json MlflowClient::call(const char* method, const std::string& path, const json& body) {
  return content_of(
      connection_.send({.body = body.is_null() ? "" : body.dump(-1, ' ', false, json::error_handler_t::replace),
                        .method = method,
                        .path = "/api/2.0/mlflow/" + path}));
}

std::string MlflowClient::experiment(const std::string& name) {
  const auto find = [&] {
    const auto path = "experiments/get-by-name?experiment_name=" + percent_encoded(name);
    return text_in(call("GET", path, {}), {"experiment", "experiment_id"});
  };
  try {
    return find();
  } catch (const MlflowError& error) {
    if (error.code != "RESOURCE_DOES_NOT_EXIST") throw;
  }
  try {
    return text_in(call("POST", "experiments/create", {{"name", name}}), {"experiment_id"});
  } catch (const MlflowError& error) {
    if (error.code != "RESOURCE_ALREADY_EXISTS") throw;
    return find();  // another program was faster
  }
}

MlflowClient::Found MlflowClient::create_run(const New& run) {
  auto tags = json::array();
  for (const auto& [name, value] : run.tags) tags.push_back({{"key", name}, {"value", value}});
  const json body{
      {"experiment_id", run.experiment_id}, {"run_name", run.run_name}, {"start_time", run.start_time}, {"tags", tags}};
  return run_in(part_of(call("POST", "runs/create", body), {"run"}));
}

MlflowClient::Found MlflowClient::find_run(const std::string& experiment_id, const std::string& tag,
                                           const std::string& value) {
  const json body{{"experiment_ids", json::array({experiment_id})},
                  {"filter", "tags.\"" + tag + "\" = '" + value + "'"},
                  {"max_results", 1}};
  const auto reply = call("POST", "runs/search", body);
  const auto runs = reply.find("runs");  // "runs" is missing if there is none
  return runs == reply.end() || !runs->is_array() || runs->empty() ? Found() : run_in(runs->front());
}

MlflowClient::Found MlflowClient::get_run(const std::string& run_id) {
  return run_in(part_of(call("GET", "runs/get?run_id=" + percent_encoded(run_id), {}), {"run"}));
}

bool MlflowClient::has_metric(const std::string& run_id, const json& metric) {
  const auto reply = call("GET", "runs/get?run_id=" + percent_encoded(run_id), {});
  const auto& data = part_of(reply, {"run", "data"});
  const auto latest = data.find("metrics");
  if (latest == data.end() || !latest->is_array()) return false;
  for (const auto& found : *latest) {
    bool same = found.is_object() && found.value("key", json()) == metric.at("key");
    for (const auto* name : {"step", "timestamp", "value"})
      same = same && same_number(found.value(name, json()), metric.at(name));
    if (same) return true;
  }
  return false;
}

void MlflowClient::log_batch(const std::string& run_id, const char* kind, const json& items) {
  call("POST", "runs/log-batch", {{kind, items}, {"run_id", run_id}});
}

void MlflowClient::update_run(const std::string& run_id, std::string_view status, int64_t end_time) {
  json body{{"run_id", run_id}, {"status", status}};
  if (end_time != 0) body["end_time"] = end_time;
  call("POST", "runs/update", body);
}

// A server with another host name could belong to anybody, and would get the credentials.
bool MlflowClient::takes_artifacts(std::string_view artifact_uri) const {
  return artifact_uri.starts_with(kArtifactScheme) && !artifact_uri.substr(kArtifactScheme.size()).starts_with("/");
}

void MlflowClient::put_artifact(std::string_view artifact_uri, const std::string& name,
                                const std::filesystem::path& file) {
  const auto place = std::string(artifact_uri.substr(kArtifactScheme.size())) + "/" + name;
  const auto reply = connection_.send(
      {.file = file, .method = "PUT", .path = "/api/2.0/mlflow-artifacts/artifacts/" + percent_encoded(place, true)});
  if (reply.status != 200 || !reply.body.empty()) content_of(reply);  // some versions reply without a body
}

}  // namespace muster::track
