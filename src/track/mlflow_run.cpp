#include "track/mlflow_run.h"

#include <cctype>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/crc.h"
#include "base/text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "track/append_file.h"
#include "track/record.h"

namespace muster::track {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string line_of(const json& content) { return content.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"; }

json number_value(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

/// The components of a path without empty ones and ".", and with "_" for "..".
std::string relative_path(std::string_view path) {
  std::string result;
  while (!path.empty()) {
    const auto part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(part.size() + 1, path.size()));
    if (part.empty() || part == ".") continue;
    if (!result.empty()) result += '/';
    result += part == ".." ? "_" : part;
  }
  return result.empty() ? "_" : result;
}

std::string name_with_notice(std::string_view name, const Notice& notice) {
  auto taken = mlflow_name(name);
  if (taken != name)
    notice("name", "MLflow takes no name such as " + in_quotes(name) + ", which is logged as " + in_quotes(taken));
  return taken;
}

std::string param_text(const LoggedValue& value, const Notice& notice) {
  auto text = plain_text(
      value, [](double number) { return number_text(number); }, std::identity());
  if (text.size() <= kLongestParam) return text;
  notice("param", "MLflow takes " + std::to_string(kLongestParam) + " bytes of a parameter, and " +
                      in_quotes(value.name) + " has " + std::to_string(text.size()) + "; the rest is cut off");
  return cut_text(text, kLongestParam);
}

/// Divides the items into lines of at most `most` items, under a key.
std::vector<std::string> lines_of(const char* key, const json& items, std::size_t most) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < items.size(); begin += most) {
    const auto end = std::min(begin + most, items.size());
    const auto at = [&](std::size_t index) { return items.begin() + static_cast<std::ptrdiff_t>(index); };
    lines.push_back(line_of({{key, json(json::array_t(at(begin), at(end)))}}));
  }
  return lines;
}

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

/// Calls f(name, field) for what mlflow.json holds.
template <class Run, class F>
void each_field(Run& run, F&& f) {
  f("artifact_uri", run.artifact_uri);
  f("ended", run.ended);
  f("experiment_id", run.experiment_id);
  f("experiment_name", run.experiment_name);
  f("key", run.key);
  f("run_id", run.run_id);
  f("run_name", run.run_name);
  f("sending", run.sending);
  f("sent", run.sent);
  f("start_time", run.start_time);
  f("tags", run.tags);
  f("tracking_uri", run.tracking_uri);
}

}  // namespace

int64_t milliseconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

std::string cut_text(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;  // inside a character
  return std::string(text.substr(0, most));
}

std::string mlflow_name(std::string_view name) {
  constexpr std::string_view kTaken = "_-. /";
  auto taken = relative_path(name);
  for (auto& c : taken)
    if (static_cast<unsigned char>(c) < 128 && !std::isalnum(static_cast<unsigned char>(c)) &&
        kTaken.find(c) == std::string_view::npos)
      c = '_';
  if (taken.size() <= kLongestName) return taken;
  return cut_text(taken, kLongestName - 9) + formatted("-{:08x}", masked_crc32c(name));
}

std::vector<std::string> metric_lines(const LoggedStep& step, const Notice& notice) {
  const auto timestamp = std::llround(step.time * 1000);
  auto items = json::array();
  const auto add = [&](const LoggedValue& value, json number) {
    items.push_back({{"key", name_with_notice(value.name, notice)},
                     {"step", step.step},
                     {"timestamp", timestamp},
                     {"value", std::move(number)}});
  };
  const auto leave_out = [&](const LoggedValue& value, const char* what) {
    notice(what, std::string("MLflow has no place for ") + what + " of a step, such as " + in_quotes(value.name) +
                     ", which is left out; `jsonl` and `tensorboard` take it");
  };
  for (const auto& value : step.values)
    std::visit(Overloaded{[&](double number) { add(value, number_value(number)); },
                          [&](int64_t number) { add(value, number); }, [&](bool flag) { add(value, flag ? 1 : 0); },
                          [&](std::string_view) { leave_out(value, "texts"); },
                          [&](const Histogram*) { leave_out(value, "histograms"); }, [&](const PngImage&) {}},
               value.data);
  return lines_of("metrics", items, kMostMetrics);
}

std::vector<std::string> param_lines(std::span<const LoggedValue> values, const Notice& notice) {
  auto items = json::array();
  for (const auto& value : values)
    items.push_back({{"key", name_with_notice(value.name, notice)}, {"value", param_text(value, notice)}});
  return lines_of("params", items, kMostParams);
}

std::string artifact_line(std::string_view name) { return line_of({{"artifact", name}}); }

std::string status_line(std::string_view status) {
  return line_of({{"end_time", milliseconds_since_1970()}, {"status", status}});
}

fs::path waiting_lines_path(const fs::path& folder) { return folder / "mlflow.waiting.jsonl"; }

std::optional<MlflowRun> load_run(const fs::path& folder) {
  std::ifstream file(run_path(folder), std::ios::binary);
  if (!file) return std::nullopt;
  try {
    MlflowRun run;
    const auto content = json::parse(file);
    each_field(run, [&](const char* name, auto& field) { content.at(name).get_to(field); });
    return run;
  } catch (const json::exception&) {
    throw Error("MU537", "the file " + in_quotes(run_path(folder).string()) +
                             ", which says where a run is at its MLflow server, is damaged; log the run's metrics "
                             "again, or write the file again by the page of this error");
  }
}

void save_run(const MlflowRun& run, const fs::path& folder) {
  json content;
  each_field(run, [&](const char* name, const auto& field) { content[name] = field; });
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
