#include "mlflow_delivery.h"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/quantities.h"
#include "base/shown.h"
#include "mlflow_lines.h"
#include "mlflow_server.h"

namespace muster::track {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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

bool leads_out(const std::string& name) {
  const fs::path path(name);
  return path.empty() || path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end();
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
    if (found.run_id.empty())
      found = client_.create_run({.experiment_id = run_.experiment_id,
                                  .run_name = run_.run_name,
                                  .start_time = run_.start_time,
                                  .tags = run_.tags});
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
  if (leads_out(name)) return leave_out_artifact(name, "its name leads out of the run's folder");
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
