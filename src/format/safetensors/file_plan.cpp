#include <algorithm>
#include <numeric>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "base/shown.h"
#include "format/safetensors.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

[[noreturn]] void refuse_to_write(std::string_view file, const std::string& reason) {
  throw CheckpointError("MU203", std::string(file) + " was not written: " + reason);
}

std::string as_json(const std::string& text, std::string_view file) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    refuse_to_write(file, "a name or a metadata text is not UTF-8: " +
                              nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }
}

void append_metadata(std::string& json, const Metadata& metadata, std::string_view file) {
  if (metadata.empty()) return;
  json += "\"__metadata__\":{";
  for (const auto& [key, text] : metadata) json += as_json(key, file) + ":" + as_json(text, file) + ",";
  json.back() = '}';
  json += ',';
}

void append_tensor(std::string& json, const TensorSpec& tensor, std::uint64_t begin, std::uint64_t end,
                   std::string_view file) {
  json += as_json(tensor.name, file) + ":{\"dtype\":\"" + std::string(name_of(tensor.type)) + "\",\"shape\":[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) json += (i ? "," : "") + std::to_string(tensor.shape[i]);
  json += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]},";
}

void check_names(std::span<const TensorSpec> tensors, std::string_view file) {
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name == "__metadata__") refuse_to_write(file, "the name __metadata__ is reserved; rename that tensor");
    if (!names.insert(tensor.name).second) refuse_to_write(file, "two tensors are named " + in_quotes(tensor.name));
  }
}

std::vector<std::size_t> data_order(std::span<const TensorSpec> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (tensors[a].type != tensors[b].type) return tensors[a].type > tensors[b].type;
    return tensors[a].name < tensors[b].name;
  });
  return order;
}

}  // namespace

FilePlan plan_file(std::span<const TensorSpec> tensors, const Metadata& metadata, std::string_view file,
                   std::uint64_t head_alignment) {
  check_names(tensors, file);
  FilePlan plan;
  plan.order = data_order(tensors);
  std::string json = "{";
  append_metadata(json, metadata, file);
  std::uint64_t position = 0;
  for (const std::size_t i : plan.order) {
    const auto bytes = byte_count(tensors[i].type, tensors[i].shape);
    if (!bytes)
      refuse_to_write(file,
                      "the shape of tensor " + in_quotes(tensors[i].name) + " has no size in whole bytes below 2^60");
    append_tensor(json, tensors[i], position, position + *bytes, file);
    position += *bytes;
  }
  if (json.size() > 1) json.pop_back();
  json += '}';
  json.resize((kLengthBytes + json.size() + head_alignment - 1) / head_alignment * head_alignment - kLengthBytes, ' ');
  const std::uint64_t length = json.size();
  if (length > kMaxHeaderBytes)
    refuse_to_write(file, "its header would have " + std::to_string(length) + " bytes, more than the limit of " +
                              std::to_string(kMaxHeaderBytes) + "; spread the tensors over several files");
  plan.head.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  plan.head += json;
  plan.file_bytes = plan.head.size() + position;
  return plan;
}

}  // namespace muster::format
