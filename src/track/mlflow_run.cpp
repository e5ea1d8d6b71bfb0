#include "mlflow_run.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "append_file.h"
#include "base/random_word.h"
#include "base/shown.h"
#include "mlflow_lines.h"
#include "muster/base/error.h"

namespace muster::track {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path run_path(const fs::path& folder) { return folder / "mlflow.json"; }

void add_tags(std::map<std::string, std::string>& tags, const Environment& variables) {
  const auto text = variables.find("MLFLOW_TAGS");
  if (!text) return;
  const auto given = json::parse(*text, nullptr, false);
  if (!given.is_object())
    throw ConfigError("MU530", "MLFLOW_TAGS is not an object of JSON; give one, such as {\"team\": \"vision\"}");
  for (const auto& [name, value] : given.items())
    tags[mlflow_name(name)] = value.is_string() ? value.get<std::string>() : value.dump();
}

std::map<std::string, std::string> tags_of(const MlflowOptions& options, const Environment& variables) {
  std::map<std::string, std::string> tags{{"mlflow.source.type", "LOCAL"}};
  std::error_code error;
  const auto program = fs::read_symlink("/proc/self/exe", error);
  if (!error) tags["mlflow.source.name"] = program.string();  // without arguments, which may contain secrets
  if (const auto user = variables.find("USER")) tags["mlflow.user"] = *user;
  add_tags(tags, variables);
  for (const auto& [name, value] : options.tags) tags[mlflow_name(name)] = value;
  for (auto& [name, value] : tags) value = cut_text(value, kLongestTag);
  return tags;
}

MlflowRun read_run(const json& from) {
  return {.artifact_uri = from.at("artifact_uri"),
          .ended = from.at("ended"),
          .experiment_id = from.at("experiment_id"),
          .experiment_name = from.at("experiment_name"),
          .key = from.at("key"),
          .run_id = from.at("run_id"),
          .run_name = from.at("run_name"),
          .sending = from.at("sending"),
          .sent = from.at("sent"),
          .start_time = from.at("start_time"),
          .tags = from.at("tags").get<std::map<std::string, std::string>>(),
          .tracking_uri = from.at("tracking_uri")};
}

}  // namespace

fs::path waiting_lines_path(const fs::path& folder) { return folder / "mlflow.waiting.jsonl"; }

std::optional<MlflowRun> load_run(const fs::path& folder) {
  std::ifstream file(run_path(folder), std::ios::binary);
  if (!file) return std::nullopt;
  try {
    return read_run(json::parse(std::string{std::istreambuf_iterator<char>(file), {}}));
  } catch (const json::exception&) {
    throw Error("MU537", "the file " + in_quotes(run_path(folder).string()) +
                             ", which says where a run is at its MLflow server, is damaged; log the run's metrics "
                             "again, or write the file again by the page of this error");
  }
}

void save_run(const MlflowRun& run, const fs::path& folder) {
  const json content{{"artifact_uri", run.artifact_uri},
                     {"ended", run.ended},
                     {"experiment_id", run.experiment_id},
                     {"experiment_name", run.experiment_name},
                     {"key", run.key},
                     {"run_id", run.run_id},
                     {"run_name", run.run_name},
                     {"sending", run.sending},
                     {"sent", run.sent},
                     {"start_time", run.start_time},
                     {"tags", run.tags},
                     {"tracking_uri", run.tracking_uri}};
  replace_file(run_path(folder), content.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

MlflowRun new_run(const fs::path& folder, const TrackersOptions& options, const std::string& tracking_uri,
                  const Environment& variables) {
  const auto variable = [&](const char* name) { return variables.find(name).value_or(""); };
  const auto first = [](std::initializer_list<std::string> texts) {
    for (const auto& text : texts)
      if (!text.empty()) return text;
    return std::string();
  };
  const auto& given = options.mlflow;
  MlflowRun run;
  run.experiment_name = first({given.experiment_name, variable("MLFLOW_EXPERIMENT_NAME")});
  if (run.experiment_name.empty()) run.experiment_id = variable("MLFLOW_EXPERIMENT_ID");
  if (run.experiment_id.empty()) run.experiment_name = first({run.experiment_name, options.name, "Default"});
  run.key = random_hex(16);
  run.run_id = first({given.run_id, variable("MLFLOW_RUN_ID")});
  run.run_name =
      cut_text(first({given.run_name, variable("MLFLOW_RUN_NAME"), folder.filename().string()}), kLongestName);
  run.start_time = milliseconds_since_1970();
  run.tags = tags_of(given, variables);
  run.tags["muster.run"] = run.key;
  run.tracking_uri = tracking_uri;
  return run;
}

MlflowRun continued_run(const fs::path& folder, MlflowRun wanted) {
  auto before = load_run(folder);
  if (!before) return wanted;
  const auto refuse = [&](const std::string& what, const std::string& there, const std::string& here) {
    throw ConfigError("MU530", "the run in " + in_quotes(folder.string()) + " is at " + what + " " + in_quotes(there) +
                                   ", not " + in_quotes(here) + "; give that one, or another version");
  };
  if (before->tracking_uri != wanted.tracking_uri)
    refuse("the MLflow server", before->tracking_uri, wanted.tracking_uri);
  if (!wanted.run_id.empty() && wanted.run_id != before->run_id) refuse("MLflow's run", before->run_id, wanted.run_id);
  return *before;
}

}  // namespace muster::track
