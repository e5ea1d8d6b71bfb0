#include "mlflow_batch.h"

#include <algorithm>

#include "mlflow_lines.h"

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

}  // namespace muster::track
