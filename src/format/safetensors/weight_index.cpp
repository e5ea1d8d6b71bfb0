#include "format/weight_index.h"

#include <cstdio>
#include <regex>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/shown.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_index(std::string_view file, const std::string& reason) {
  throw CheckpointError("MU205", std::string(file) + ": " + reason);
}

/// Refuses faults that a parsed document does not show: duplicate names, and excessive nesting.
class Watch {
 public:
  explicit Watch(std::string_view file) : file_(file) {}

  bool operator()(int depth, json::parse_event_t event, json& value) {
    if (depth > 16) refuse_index(file_, "its JSON is nested too deeply");
    if (event == json::parse_event_t::object_start) names_[depth + 1].clear();
    if (event == json::parse_event_t::key && !names_[depth].insert(value.get<std::string>()).second)
      refuse_index(file_, "the name " + in_quotes(value.get_ref<const std::string&>()) + " comes twice");
    return true;
  }

 private:
  std::string_view file_;
  std::map<int, std::set<std::string>> names_;
};

std::string file_name(const json& value, const std::string& tensor, std::string_view file) {
  if (!value.is_string()) refuse_index(file, "the file of tensor " + in_quotes(tensor) + " is no string");
  const auto name = value.get<std::string>();
  const bool plain = !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
                     shown(name, name.size()) == name;
  if (!plain)
    refuse_index(file, "the file of tensor " + in_quotes(tensor) + " must be a name in the index's own folder, not " +
                           in_quotes(name));
  return name;
}

json parse_watched(std::string_view text, std::string_view file) {
  // The JSON parser takes a zero byte for the end and would ignore the bytes after it.
  if (text.find('\0') != std::string_view::npos) refuse_index(file, "it has a zero byte");
  try {
    return json::parse(text, Watch(file));
  } catch (const json::exception& error) {
    refuse_index(file, "it is not JSON (" + shown(error.what()) + ")");
  }
}

}  // namespace

std::vector<std::vector<std::size_t>> split_into_shards(std::span<const std::uint64_t> tensor_bytes,
                                                        std::uint64_t limit_bytes) {
  std::vector<std::vector<std::size_t>> shards;
  std::vector<std::size_t> current;
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < tensor_bytes.size(); ++i) {
    if (tensor_bytes[i] > limit_bytes) {
      shards.push_back({i});
      continue;
    }
    if (tensor_bytes[i] > limit_bytes - filled) {
      shards.push_back(std::exchange(current, {}));
      filled = 0;
    }
    current.push_back(i);
    filled += tensor_bytes[i];
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  if (count == 1) return std::string(kWeightsName);
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

bool is_weight_file_name(std::string_view name) {
  static const std::regex pattern(R"(model(-\d{5,}-of-\d{5,}(\.former\d*)?)?\.safetensors)");
  return std::regex_match(name.begin(), name.end(), pattern);
}

std::string to_json(const WeightIndex& index) {
  const json text = {{"metadata", {{"total_size", index.total_bytes}}}, {"weight_map", index.file_of}};
  return text.dump(2) + "\n";
}

WeightIndex parse_index(std::string_view text, std::string_view file) {
  const json parsed = parse_watched(text, file);
  if (!parsed.is_object() || !parsed.contains("weight_map") || !parsed["weight_map"].is_object())
    refuse_index(file, "it has no table named weight_map");
  WeightIndex index;
  for (const auto& [tensor, value] : parsed["weight_map"].items())
    index.file_of[tensor] = file_name(value, tensor, file);
  if (const auto metadata = parsed.find("metadata"); metadata != parsed.end() && metadata->is_object())
    if (const auto total = metadata->find("total_size"); total != metadata->end() && total->is_number_unsigned())
      index.total_bytes = total->get<std::uint64_t>();
  return index;
}

}  // namespace muster::format
