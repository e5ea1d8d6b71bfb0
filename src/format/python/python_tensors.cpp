#include <algorithm>

#include "base/shown.h"
#include "format/python/python_objects.h"

namespace muster::format {
namespace {

using Kind = PickleNode::Kind;
constexpr std::size_t kMostDimensions = 64;

/// The class's own name: "torch.cuda.FloatStorage" is stored as "torch.FloatStorage" is.
const DtypeInfo* storage_class(const PickleNode& type) {
  if (type.kind != Kind::global || !type.text.starts_with("torch")) return nullptr;
  if (type.name == "UntypedStorage" || type.name == "_UntypedStorage") return &dtype_info(ScalarType::uint8);
  return find_storage_type(type.name);
}

std::string key_text(const PickleNode& node) {
  return node.kind == Kind::integer ? std::to_string(node.integer)
                                    : std::string(node.text.substr(0, kMaxPickleName + 1));
}

}  // namespace

StorageName storage_name(const PickleGraph& graph, const PickleNode& node, std::string_view file) {
  if (node.kind != Kind::persistent) refuse_python(file, "a tensor has no storage");
  const PickleNode& words = graph.at(graph.items(node)[0]);
  const auto& parts = graph.items(words);
  if (words.kind != Kind::tuple || parts.size() < 5 || graph.at(parts[0]).text != "storage")
    refuse_python(file, "a storage has no proper name");
  StorageName name{.type = storage_class(graph.at(parts[1])),
                   .key = key_text(graph.at(parts[2])),
                   .location = std::string(graph.at(parts[3]).text.substr(0, kMaxPickleName + 1)),
                   .count = graph.at(parts[4]).integer};
  if (name.key.size() > kMaxPickleName || name.location.size() > kMaxPickleName)
    refuse_python(file, "a storage has a name of more than " + std::to_string(kMaxPickleName) + " bytes");
  if (!name.type)
    refuse_python(file, "a storage is of the class " + in_quotes(graph.at(parts[1]).name) + ", which is not known");
  if (graph.at(parts[4]).kind != Kind::integer || name.count < 0) refuse_python(file, "a storage has no proper size");
  if (parts.size() > 5 && graph.at(parts[5]).kind == Kind::tuple) {
    const auto& view = graph.items(graph.at(parts[5]));
    if (view.size() != 3 || graph.at(view[1]).kind != Kind::integer || graph.at(view[1]).integer < 0)
      refuse_python(file, "a part of a storage has no proper place");
    name.view_offset = graph.at(view[1]).integer;
  }
  return name;
}

std::size_t PythonObjects::storage(const StorageName& name) {
  if (const auto known = storage_of_key_.find(name.key); known != storage_of_key_.end()) return known->second;
  const auto place = place_of_(name.key);
  if (!place) refuse("the storage " + in_quotes(name.key) + " is not in the file");
  const std::size_t position = into_->storages.size();
  into_->storages.push_back({name.key, name.location, place->offset, place->bytes, place->crc, place->has_crc});
  storage_of_key_[name.key] = position;
  return position;
}

void PythonObjects::read_metadata(std::uint32_t node, PythonTensor& tensor) const {
  const auto& pairs = graph_.entries(graph_.at(node));
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const auto word = graph_.at(pairs[i]).text;
    const bool on = graph_.at(pairs[i + 1]).kind == Kind::boolean && graph_.at(pairs[i + 1]).integer;
    if (word == "conj") tensor.conjugate = on;
    else if (word == "neg") tensor.negative = on;
    else refuse("a tensor has the unknown property " + in_quotes(word));
  }
}

/// Every element must lie in the storage, or reading it would leave the file.
void PythonObjects::check_bounds(const PythonTensor& tensor, std::uint64_t bytes) const {
  if (tensor.shape.size() != tensor.strides.size() || tensor.shape.size() > kMostDimensions)
    refuse("a tensor's shape and strides disagree");
  const auto width = static_cast<std::int64_t>(dtype_info(tensor.type).bytes);
  std::int64_t last = tensor.offset, count = 1;
  bool empty = false, fits = tensor.offset >= 0;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    const std::int64_t size = tensor.shape[i], stride = tensor.strides[i];
    std::int64_t reach = 0;
    fits = fits && size >= 0 && stride >= 0;
    empty |= size == 0;
    fits = fits && !__builtin_mul_overflow(count, std::max<std::int64_t>(size, 1), &count);
    fits = fits && !__builtin_mul_overflow(std::max<std::int64_t>(size, 1) - 1, stride, &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  std::int64_t unused = 0;
  fits = fits && !__builtin_mul_overflow(count, width, &unused) && last < std::int64_t{1} << 58;
  if (!fits) refuse("a tensor has a shape, strides or an offset that cannot be");
  if (!empty && static_cast<std::uint64_t>(last + 1) * static_cast<std::uint64_t>(width) > bytes)
    refuse("a tensor reaches beyond its storage of " + std::to_string(bytes) + " bytes");
}

PythonValue PythonObjects::make_tensor(std::uint32_t node, const std::vector<std::uint32_t>& arguments,
                                       std::string_view function) {
  const bool third = function == "tensor_v3", second = function == "tensor_v2";
  if (!third && !second && function != "tensor")
    return PythonValue::of_text("torch._utils._rebuild_" + shown(function), PythonValue::Kind::foreign);
  const std::size_t needed = third ? 7 : second ? 6 : 4;
  if (arguments.size() < needed) refuse("a tensor has too few parts");
  const StorageName name = storage_name(graph_, graph_.at(arguments[0]), file_);
  PythonTensor tensor{.storage = 0,
                      .type = name.type->type,
                      .offset = integer(arguments[1], "a tensor"),
                      .shape = integers(arguments[2], "a tensor"),
                      .strides = integers(arguments[3], "a tensor")};
  if (third) {
    const PickleNode& type = graph_.at(arguments[6]);
    const auto* row = type.kind == Kind::global && type.text == "torch" ? find_scalar_type(type.name) : nullptr;
    if (!row) return PythonValue::of_text("torch.Tensor of dtype " + shown(type.name), PythonValue::Kind::foreign);
    tensor.type = row->type;
  }
  if (__builtin_add_overflow(tensor.offset, name.view_offset, &tensor.offset))
    refuse("a tensor has an offset that cannot be");
  if (arguments.size() > needed) read_metadata(arguments[needed], tensor);
  tensor.storage = storage(name);
  const std::uint64_t bytes = into_->storages[tensor.storage].bytes;
  if (static_cast<std::uint64_t>(name.count) > bytes / name.type->bytes)
    refuse("the storage " + in_quotes(name.key) + " has " + std::to_string(bytes) + " bytes, fewer than its " +
           std::to_string(name.count) + " elements need");
  check_bounds(tensor, bytes);
  const std::size_t position = into_->tensors.size();
  into_->tensors.push_back(std::move(tensor));
  tensor_of_node_[node] = position;
  return PythonValue::of_tensor(position);
}

}  // namespace muster::format
