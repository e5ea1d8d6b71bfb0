#include "track/mlflow_delivery.h"

#include <fstream>

#include "append_file.h"
#include "base/log.h"
#include "base/text.h"
#include "mlflow_server.h"

namespace muster::track {
namespace {

using nlohmann::json;

/// Whether each item has a name and the other fields that are read later.
bool is_list(const json& line, const char* name, bool has_step) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_array()) return false;
  for (const auto& item : *found)
    if (!item.is_object() || !item.contains("key") || !item["key"].is_string() || !item.contains("value") ||
        (has_step && (!item.contains("step") || !item.contains("timestamp"))))
      return false;
  return true;
}

/// Adds the line; returns false if it belongs to the next batch.
bool add_line(MlflowBatch& batch, const json& line) {
  if (!line.is_object()) return ++batch.unreadable > 0;
  if (is_list(line, "metrics", true)) {
    const auto& items = line["metrics"];
    if (batch.metrics.size() + items.size() > kMostMetrics && !batch.metrics.empty()) return false;
    batch.metrics.insert(batch.metrics.end(), items.begin(), items.end());
    return true;
  }
  if (!batch.metrics.empty()) return false;
  if (is_list(line, "params", false)) batch.params = line["params"];
  else if (line.contains("artifact") && line["artifact"].is_string())
    batch.artifact = line["artifact"].get<std::string>();
  else if (line.contains("status") && line["status"].is_string()) {
    batch.status = line["status"].get<std::string>();
    if (line.contains("end_time") && line["end_time"].is_number_integer())
      batch.end_time = line["end_time"].get<int64_t>();
  } else ++batch.unreadable;
  return true;
}

bool is_full(const MlflowBatch& batch) {
  return !batch.params.empty() || !batch.artifact.empty() || !batch.status.empty();
}

}  // namespace

MlflowBatch first_batch(std::string_view lines) {
  MlflowBatch batch;
  while (batch.size < lines.size() && !is_full(batch)) {
    const auto rest = lines.substr(batch.size);
    const auto line = rest.substr(0, rest.find('\n'));
    if (!add_line(batch, json::parse(line, nullptr, false))) break;
    batch.size += std::min(line.size() + 1, rest.size());
  }
  return batch;
}

namespace {

constexpr std::size_t kMostShownOfReply = 300;  // limit on a quoted reply in bytes
constexpr std::string_view kArtifactScheme = "mlflow-artifacts:/";

[[noreturn]] void refuse_reply(long status) {
  throw MlflowError("it answers with what is not a reply of MLflow", status);
}

/// The text at this path in a reply, such as "/run/info/run_id".
std::string text_in(const json& reply, const char* path) {
  const json::json_pointer place(path);
  if (!reply.contains(place) || !reply[place].is_string()) refuse_reply(200);
  return reply[place].get<std::string>();
}

MlflowClient::Found run_in(const json& reply) {
  return {.artifact_uri = text_in(reply, "/run/info/artifact_uri"),
          .experiment_id = text_in(reply, "/run/info/experiment_id"),
          .run_id = text_in(reply, "/run/info/run_id")};
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
    return text_in(call("GET", path, {}), "/experiment/experiment_id");
  };
  try {
    return find();
  } catch (const MlflowError& error) {
    if (error.code != "RESOURCE_DOES_NOT_EXIST") throw;
  }
  try {
    return text_in(call("POST", "experiments/create", {{"name", name}}), "/experiment_id");
  } catch (const MlflowError& error) {
    if (error.code != "RESOURCE_ALREADY_EXISTS") throw;
    return find();  // another program was faster
  }
}

MlflowClient::Found MlflowClient::create_run(const MlflowRun& run) {
  auto tags = json::array();
  for (const auto& [name, value] : run.tags) tags.push_back({{"key", name}, {"value", value}});
  const json body{
      {"experiment_id", run.experiment_id}, {"run_name", run.run_name}, {"start_time", run.start_time}, {"tags", tags}};
  return run_in(call("POST", "runs/create", body));
}

MlflowClient::Found MlflowClient::find_run(const std::string& experiment_id, const std::string& tag,
                                           const std::string& value) {
  const json body{{"experiment_ids", json::array({experiment_id})},
                  {"filter", "tags.\"" + tag + "\" = '" + value + "'"},
                  {"max_results", 1}};
  const auto reply = call("POST", "runs/search", body);
  const auto runs = reply.find("runs");  // "runs" is missing if there is none
  return runs == reply.end() || !runs->is_array() || runs->empty() ? Found() : run_in({{"run", runs->front()}});
}

MlflowClient::Found MlflowClient::get_run(const std::string& run_id) {
  return run_in(call("GET", "runs/get?run_id=" + percent_encoded(run_id), {}));
}

bool MlflowClient::has_metric(const std::string& run_id, const json& metric) {
  const auto reply = call("GET", "runs/get?run_id=" + percent_encoded(run_id), {});
  const json::json_pointer data("/run/data"), latest("/run/data/metrics");
  if (!reply.contains(data)) refuse_reply(200);
  if (!reply.contains(latest) || !reply[latest].is_array()) return false;
  for (const auto& found : reply[latest]) {
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

namespace {

namespace fs = std::filesystem;

constexpr int kMostAttempts = 3;  // limit per file; a storage that fails must not hold up the metrics that follow

json half_of(const json& items, bool second) {
  const auto middle = items.begin() + static_cast<std::ptrdiff_t>(items.size() / 2);
  return second ? json(json::array_t(middle, items.end())) : json(json::array_t(items.begin(), middle));
}

/// The files of a folder, or a single file, with names below `name`.
std::vector<std::pair<std::string, fs::path>> files_of(const std::string& name, const fs::path& copy) {
  std::error_code error;
  if (!fs::is_directory(copy, error)) return {{name, copy}};
  std::vector<std::pair<std::string, fs::path>> files;
  for (const auto& entry : fs::recursive_directory_iterator(copy))
    if (entry.is_regular_file())
      files.emplace_back(name + "/" + fs::relative(entry.path(), copy).generic_string(), entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

MlflowDelivery::MlflowDelivery(MlflowRun run, fs::path folder, MlflowClient client, std::optional<uint64_t> waiting)
    : run_(std::move(run)), folder_(std::move(folder)), client_(std::move(client)), uncertain_(waiting.has_value()) {
  // The process may have died after it emptied the file and before it recorded that.
  if (run_.sent > waiting.value_or(0)) run_.sent = 0;
  if (run_.sending > waiting.value_or(0)) run_.sending = run_.sent;
  save_run(run_, folder_);  // before lines are added, which would be taken for sent ones
}

void MlflowDelivery::set_run(const MlflowClient::Found& found) {
  run_.artifact_uri = found.artifact_uri;
  run_.experiment_id = found.experiment_id;
  run_.run_id = found.run_id;
}

void MlflowDelivery::open(bool is_running) {
  if (open_) return;
  if (run_.run_id.empty()) {
    if (run_.experiment_id.empty()) run_.experiment_id = client_.experiment(run_.experiment_name);
    // A run may exist although its reply was lost.
    auto found = uncertain_ ? client_.find_run(run_.experiment_id, "muster.run", run_.key) : MlflowClient::Found();
    uncertain_ = true;
    if (found.run_id.empty()) found = client_.create_run(run_);
    set_run(found);
  } else {
    set_run(client_.get_run(run_.run_id));
    if (is_running) {
      client_.update_run(run_.run_id, "RUNNING", 0);
      run_.ended = false;
    }
  }
  save_run(run_, folder_);
  uncertain_ = run_.sending > run_.sent;
  open_ = true;
}

void MlflowDelivery::send(std::string_view lines) {
  // Sends the same batch again, so that the server can be asked whether it has it.
  const auto batch =
      first_batch(uncertain_ && run_.sending > run_.sent ? lines.substr(0, run_.sending - run_.sent) : lines);
  run_.sending = run_.sent + batch.size;
  save_run(run_, folder_);
  if (batch.unreadable > 0)
    report("MU535", "line",
           log::str(counted(batch.unreadable, "line"), " of ", in_quotes(waiting_lines_path(folder_).string()),
                    " cannot be read, and nothing of it is sent"));
  deliver(batch);
  run_.sent = run_.sending;
  save_run(run_, folder_);
}

void MlflowDelivery::start_over() {
  run_.sent = run_.sending = 0;
  save_run(run_, folder_);
}

void MlflowDelivery::deliver(const MlflowBatch& batch) {
  if (!batch.metrics.empty()) {
    const bool has_it = uncertain_ && client_.has_metric(run_.run_id, batch.metrics.back());
    uncertain_ = true;
    if (!has_it) log("metrics", batch.metrics);
  }
  uncertain_ = true;
  if (!batch.params.empty()) log("params", batch.params);
  if (!batch.artifact.empty()) put_artifacts(batch.artifact);
  if (batch.status.empty()) run_.ended = false;
  else end(batch.status, batch.end_time);
  uncertain_ = false;
}

void MlflowDelivery::end(std::string_view status, int64_t end_time) {
  client_.update_run(run_.run_id, status, end_time);
  run_.ended = true;
}

void MlflowDelivery::end_killed() {
  if (run_.ended) return;
  end("KILLED", milliseconds_since_1970());
  save_run(run_, folder_);
}

// Splits a refused batch in halves, down to the values that the server does not accept.
void MlflowDelivery::log(const char* kind, const json& items) {
  try {
    client_.log_batch(run_.run_id, kind, items);
  } catch (const MlflowError& error) {
    if (!error.is_refusal()) throw;
    if (items.size() > 1) {
      log(kind, half_of(items, false));
      log(kind, half_of(items, true));
      return;
    }
    ++refused_;
    report("MU535", kind,
           log::str("MLflow does not take one of the ", kind, ", ",
                    in_quotes(client_.server().secrets.hidden_in(items.front().at("key").get<std::string>())), " (",
                    error.what(), "); it is left out, and so are others of that kind, which are counted at the end"));
  }
}

void MlflowDelivery::put_artifacts(const std::string& name) {
  if (name.empty() || leads_out(name)) return leave_out_artifact(name, "its name leads out of the run's folder");
  if (!client_.takes_artifacts(run_.artifact_uri))
    return leave_out_artifact(name, "the server does not take files over HTTP; it keeps those of this run at " +
                                        in_quotes(without_credentials(run_.artifact_uri)));
  try {
    for (const auto& [inside, file] : files_of(name, folder_ / "artifacts" / name)) put_artifact(inside, file);
  } catch (const fs::filesystem_error& error) {
    leave_out_artifact(name, error.code().message());
  }
  attempts_ = 0;
}

void MlflowDelivery::put_artifact(const std::string& name, const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return leave_out_artifact(name, "it is not there any more");
  if (!std::ifstream(file)) return leave_out_artifact(name, "it cannot be read");
  try {
    client_.put_artifact(run_.artifact_uri, name, file);
  } catch (const MlflowError& failure) {
    const bool is_off = std::string_view(failure.what()).find("serve-artifacts") != std::string_view::npos;
    if (failure.status == 0 || (!failure.is_refusal() && !is_off && ++attempts_ < kMostAttempts)) throw;
    attempts_ = 0;
    leave_out_artifact(name, failure.what());
  }
}

void MlflowDelivery::leave_out_artifact(const std::string& name, const std::string& reason) {
  ++refused_;
  report("MU536", "artifact",
         log::str("the file ", in_quotes(name), " does not reach MLflow (", reason, "); it stays in ",
                  in_quotes((folder_ / "artifacts").string()), ", and so do others that fail"));
}

void MlflowDelivery::report(const char* id, const std::string& kind, const std::string& sentence) {
  if (reported_.insert(kind).second) log::warning(id, ": ", sentence);
}

}  // namespace muster::track
