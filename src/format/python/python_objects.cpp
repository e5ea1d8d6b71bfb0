#include <bit>

#include "base/text.h"
#include "format/little_endian.h"
#include "muster/base/error.h"
#include "pickle_graph.h"

namespace muster::format {
namespace {

using NodeKind = PickleNode::Kind;
using Made = PythonValue::Kind;
using Arguments = std::vector<std::uint32_t>;

PythonValue foreign(std::string_view name) { return PythonValue::of_text(shown(name), Made::foreign); }

/// Text for a key of a map; texts are equal only for equal keys.
std::string key_of(const PythonValue& key) {
  if (key.kind == Made::text || key.kind == Made::bytes || key.kind == Made::foreign)
    return std::string(1, static_cast<char>(key.kind)) + key.text;
  if (key.kind == Made::tuple) {
    std::string text = "(";
    for (const auto& item : key.items) {
      const std::string part = key_of(item);
      text += std::to_string(part.size()) + ":" + part;
    }
    return text;
  }
  return std::string(1, static_cast<char>(key.kind)) + std::to_string(key.integer) + "," +
         std::to_string(std::bit_cast<std::uint64_t>(key.number));
}

/// Decodes UTF-8 text with code points 0 to 255 to bytes; nullopt for other text.
std::optional<std::string> latin1(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      result += static_cast<char>(byte);
    } else if ((byte == 0xC2 || byte == 0xC3) && i + 1 < text.size()) {
      result += static_cast<char>((byte & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F));
    } else {
      return std::nullopt;
    }
  }
  return result;
}

constexpr std::size_t kMostDimensions = 64;  // limit on the dimensions of a tensor

/// The type of a storage class; "torch.cuda.FloatStorage" is handled as "torch.FloatStorage".
const DtypeInfo* storage_class(const PickleNode& type) {
  if (type.kind != NodeKind::global || !type.text.starts_with("torch")) return nullptr;
  if (type.name == "UntypedStorage" || type.name == "_UntypedStorage") return &dtype_info(ScalarType::uint8);
  return find_storage_type(type.name);
}

std::string key_text(const PickleNode& node) {
  return node.kind == NodeKind::integer ? std::to_string(node.integer)
                                        : std::string(node.text.substr(0, kMaxPickleName + 1));
}

/// Converts descriptions of objects to values, for classes and functions with known names.
class PythonObjects {
 public:
  PythonObjects(const PickleGraph& graph, std::string_view file, const FindStorage& find_storage, PythonFile& into)
      : graph_(graph), file_(file), find_storage_(find_storage), into_(into), limit_(graph.bytes) {}

  PythonValue make(std::uint32_t node, int depth) {
    if (depth > kMaxPythonDepth)
      refuse("its values are nested more than " + std::to_string(kMaxPythonDepth) + " deep, or contain themselves");
    const PickleNode& at = graph_.at(node);
    switch (at.kind) {
      case NodeKind::none: return {};
      case NodeKind::boolean: return {.kind = Made::boolean, .integer = at.integer};
      case NodeKind::integer: return PythonValue::of_integer(at.integer);
      case NodeKind::huge: return foreign("int of more than 64 bits");
      case NodeKind::number: return {.kind = Made::number, .number = at.number};
      case NodeKind::text: return make_text(at.text, Made::text);
      case NodeKind::bytes: return make_text(at.text, Made::bytes);
      case NodeKind::list:
      case NodeKind::set: return make_sequence(Made::list, graph_.items(at), depth);
      case NodeKind::tuple: return make_sequence(Made::tuple, graph_.items(at), depth);
      case NodeKind::map: return make_map(graph_.entries(at), depth);
      case NodeKind::global: return make_global(at);
      case NodeKind::object: return make_object(node, depth);
      case NodeKind::persistent: return foreign("torch.storage (a storage by itself)");
    }
    return {};
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const { refuse_python(file_, reason); }

  void charge(std::uint64_t bytes) {
    if (!limit_.take(bytes)) refuse("its values unfold to more than " + std::to_string(limit_.most()) + " bytes");
  }

  PythonValue make_text(std::string_view text, Made kind) {
    charge(text.size());
    return PythonValue::of_text(std::string(text), kind);
  }

  PythonValue make_sequence(Made kind, const Arguments& items, int depth) {
    PythonValue value{.kind = kind};
    charge(items.size() * sizeof(PythonValue));
    value.items.reserve(items.size());
    for (const auto item : items) value.items.push_back(make(item, depth + 1));
    return value;
  }

  PythonValue make_map(const Arguments& pairs, int depth) {
    PythonValue value{.kind = Made::map};
    constexpr std::uint64_t kPlace = 64;  // bytes of a key in the table of keys, in addition to its text
    charge(pairs.size() / 2 * (sizeof(PythonValue::Entry) + kPlace));
    value.entries.reserve(pairs.size() / 2);
    std::unordered_map<std::string, std::size_t> places;
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      PythonValue key = make(pairs[i], depth + 1);
      if (key.text.size() > kMaxPythonKey)
        refuse("a dictionary has a key of more than " + std::to_string(kMaxPythonKey) + " bytes");
      if (key.kind == Made::list || key.kind == Made::map || key.kind == Made::tensor)
        refuse("a dictionary has a key that Python does not take");
      std::string name = key_of(key);
      charge(name.size());
      const auto [place, fresh] = places.emplace(std::move(name), value.entries.size());
      PythonValue made = make(pairs[i + 1], depth + 1);
      if (fresh) value.entries.emplace_back(std::move(key), std::move(made));
      else value.entries[place->second].second = std::move(made);
    }
    return value;
  }

  std::string name_of_global(const PickleNode& node) const {
    std::string module(node.text);
    if (module == "__builtin__") module = "builtins";
    return module + "." + std::string(node.name);
  }

  PythonValue make_global(const PickleNode& node) const {
    std::string name = name_of_global(node);
    if (node.text == "torch" && find_scalar_type(node.name)) return PythonValue::of_text(std::move(name));
    return foreign(std::move(name));
  }

  const Arguments& arguments_of(const PickleNode& object) const {
    const PickleNode& arguments = graph_.at(graph_.items(object)[1]);
    if (arguments.kind != NodeKind::tuple) refuse("a function's arguments are not a tuple");
    return graph_.items(arguments);
  }

  PythonValue make_object(std::uint32_t node, int depth) {
    const PickleNode& object = graph_.at(node);
    const PickleNode& callee = graph_.at(graph_.items(object)[0]);
    if (callee.kind != NodeKind::global) return foreign("the result of a call");
    const std::string name = name_of_global(callee);
    if (auto value = make_collection(name, object, depth)) return std::move(*value);
    if (auto value = make_tensor_like(name, node, depth)) return std::move(*value);
    if (callee.text.starts_with("__torch__")) return make_module(object, depth);
    const auto& arguments = arguments_of(object);
    if (name == "_codecs.encode") return make_bytes(arguments);
    if (name == "numpy.core.multiarray.scalar" || name == "numpy._core.multiarray.scalar")
      return make_numpy_scalar(arguments);
    if (name == "torch.device" && !arguments.empty()) {
      std::string device = text(arguments[0], "a device");
      if (arguments.size() > 1 && graph_.at(arguments[1]).kind == NodeKind::integer)
        device += ":" + std::to_string(integer(arguments[1], "a device"));
      return PythonValue::of_text(std::move(device));
    }
    return foreign(name);
  }

  std::optional<PythonValue> make_collection(std::string_view name, const PickleNode& object, int depth) {
    const bool counter = name == "collections.Counter", ordered = name == "collections.OrderedDict";
    if (ordered || counter || name == "collections.defaultdict") {
      Arguments pairs;
      const auto& arguments = arguments_of(object);
      if (!arguments.empty() && counter) pairs = graph_.entries(graph_.at(arguments[0]));
      if (!arguments.empty() && ordered)
        for (const auto pair : graph_.items(graph_.at(arguments[0]))) {
          const auto& parts = graph_.items(graph_.at(pair));
          if (parts.size() != 2) refuse("an OrderedDict is made of something else than pairs");
          pairs.insert(pairs.end(), parts.begin(), parts.end());
        }
      const auto& later = graph_.entries(object);
      pairs.insert(pairs.end(), later.begin(), later.end());
      return make_map(pairs, depth);
    }
    const bool typed_list = name == "torch.jit._pickle.build_intlist" || name == "torch.jit._pickle.build_doublelist" ||
                            name == "torch.jit._pickle.build_boollist" || name == "torch.jit._pickle.build_tensorlist";
    if (typed_list || name == "builtins.set" || name == "builtins.frozenset" || name == "torch.Size") {
      const auto& arguments = arguments_of(object);
      static const Arguments nothing;
      return make_sequence(name == "torch.Size" ? Made::tuple : Made::list,
                           arguments.empty() ? nothing : graph_.items(graph_.at(arguments[0])), depth);
    }
    if (name == "torch.jit._pickle.restore_type_tag" && !arguments_of(object).empty())
      return make(arguments_of(object)[0], depth + 1);
    if (name == "builtins.bytearray") return make_bytes(arguments_of(object));
    return std::nullopt;
  }

  std::optional<PythonValue> make_tensor_like(std::string_view name, std::uint32_t node, int depth) {
    constexpr std::string_view kRebuild = "torch._utils._rebuild_";
    const auto known = tensor_of_node_.find(node);
    if (known != tensor_of_node_.end()) return PythonValue::of_tensor(known->second);
    if (name == "torch.nn.parameter.Parameter" || name == "torch._utils._rebuild_parameter" ||
        name == "torch._utils._rebuild_parameter_with_state") {
      const auto& arguments = arguments_of(graph_.at(node));
      if (arguments.empty()) return std::nullopt;
      return make(arguments[0], depth + 1);
    }
    if (name == "torch._tensor._rebuild_from_type_v2") {
      const auto& arguments = arguments_of(graph_.at(node));
      if (arguments.size() != 4 || graph_.at(arguments[0]).kind != NodeKind::global ||
          graph_.at(arguments[1]).kind != NodeKind::global)
        return std::nullopt;
      const std::string type = name_of_global(graph_.at(arguments[1])),
                        function = name_of_global(graph_.at(arguments[0]));
      if (type != "torch.Tensor" && type != "torch.nn.parameter.Parameter" && type != "torch.nn.parameter.Buffer")
        return foreign(type);
      const PickleNode& inner = graph_.at(arguments[2]);
      if (inner.kind != NodeKind::tuple || !function.starts_with(kRebuild)) return foreign(function);
      const auto& parts = graph_.items(inner);
      if (function == "torch._utils._rebuild_parameter" && !parts.empty()) return make(parts[0], depth + 1);
      return make_tensor(node, parts, std::string_view(function).substr(kRebuild.size()));
    }
    if (!name.starts_with(kRebuild)) return std::nullopt;
    return make_tensor(node, arguments_of(graph_.at(node)), name.substr(kRebuild.size()));
  }

  /// An object of a TorchScript class is a map of its attributes; enumerations and packed weights are not supported.
  PythonValue make_module(const PickleNode& object, int depth) {
    const PickleNode& state = graph_.at(object.state);
    if (state.kind != NodeKind::map) return foreign(name_of_global(graph_.at(graph_.items(object)[0])));
    auto value = make_map(graph_.entries(state), depth);
    value.text = "module";
    return value;
  }

  PythonValue make_bytes(const Arguments& arguments) {
    PythonValue value = PythonValue::of_text("", Made::bytes);
    if (arguments.empty()) return value;
    const PickleNode& content = graph_.at(arguments[0]);
    if (content.kind != NodeKind::text) {
      value.text = text(arguments[0], "bytes");
      return value;
    }
    charge(content.text.size());
    const auto bytes = latin1(content.text);
    if (!bytes) refuse("bytes are given by text that is not Latin-1");
    value.text = *bytes;
    return value;
  }

  PythonValue make_numpy_scalar(const Arguments& arguments) {
    const PickleNode& type = graph_.at(arguments.empty() ? 0 : arguments[0]);
    if (arguments.size() != 2 || type.kind != NodeKind::object) return foreign("numpy scalar");
    const auto& type_arguments = arguments_of(type);
    const std::string word = type_arguments.empty() ? "" : text(type_arguments[0], "a numpy type");
    const PickleNode& content = graph_.at(arguments[1]);
    const std::string bytes = content.kind == NodeKind::object ? make_bytes(arguments_of(content)).text
                                                               : text(arguments[1], "a numpy scalar");
    const auto& state = graph_.items(graph_.at(type.state));
    const bool little =
        state.size() < 2 || graph_.at(state[1]).kind != NodeKind::text || graph_.at(state[1]).text != ">";
    const auto has = [&](std::string_view wanted, std::size_t size) {
      return little && word == wanted && bytes.size() == size;
    };
    const auto integer = [&](auto zero) { return PythonValue::of_integer(number_at<decltype(zero)>(bytes, 0)); };
    if (has("b1", 1)) return {.kind = Made::boolean, .integer = bytes[0] != 0};
    if (has("i1", 1)) return integer(std::int8_t{});
    if (has("u1", 1)) return integer(std::uint8_t{});
    if (has("i2", 2)) return integer(std::int16_t{});
    if (has("u2", 2)) return integer(std::uint16_t{});
    if (has("i4", 4)) return integer(std::int32_t{});
    if (has("u4", 4)) return integer(std::uint32_t{});
    if (has("i8", 8)) return integer(std::int64_t{});
    if (has("f4", 4)) return {.kind = Made::number, .number = number_at<float>(bytes, 0)};
    if (has("f8", 8)) return {.kind = Made::number, .number = number_at<double>(bytes, 0)};
    return foreign("numpy scalar of type " + word);
  }

  std::int64_t integer(std::uint32_t node, const char* what) const {
    if (graph_.at(node).kind != NodeKind::integer) refuse(std::string(what) + " has something else than an integer");
    return graph_.at(node).integer;
  }

  std::vector<std::int64_t> integers(std::uint32_t node, const char* what) const {
    const PickleNode* list = &graph_.at(node);
    if (list->kind == NodeKind::object && !arguments_of(*list).empty())
      list = &graph_.at(arguments_of(*list)[0]);  // torch.Size
    if (list->kind != NodeKind::tuple && list->kind != NodeKind::list)
      refuse(std::string(what) + " has a shape or strides that are not a tuple");
    std::vector<std::int64_t> result;
    for (const auto item : graph_.items(*list)) result.push_back(integer(item, what));
    return result;
  }

  std::string text(std::uint32_t node, const char* what) {
    const PickleNode& at = graph_.at(node);
    charge(at.text.size());
    if (at.kind != NodeKind::text && at.kind != NodeKind::bytes) refuse(std::string(what) + " is not text");
    return std::string(at.text);
  }

  std::size_t storage(const StorageName& name) {
    if (const auto known = storage_of_key_.find(name.key); known != storage_of_key_.end()) return known->second;
    auto found = find_storage_(name.key);
    if (!found) refuse("the storage " + in_quotes(name.key) + " is not in the file");
    found->key = name.key;
    found->location = name.location;
    const std::size_t position = into_.storages.size();
    into_.storages.push_back(std::move(*found));
    storage_of_key_[name.key] = position;
    return position;
  }

  void read_metadata(std::uint32_t node, PythonTensor& tensor) const {
    const auto& pairs = graph_.entries(graph_.at(node));
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const auto word = graph_.at(pairs[i]).text;
      const bool on = graph_.at(pairs[i + 1]).kind == NodeKind::boolean && graph_.at(pairs[i + 1]).integer;
      if (word == "conj") tensor.conjugate = on;
      else if (word == "neg") tensor.negative = on;
      else refuse("a tensor has the unknown property " + in_quotes(word));
    }
  }

  /// Every element must be within the storage: reading others would leave the file.
  void check_bounds(const PythonTensor& tensor, std::uint64_t bytes) const {
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

  PythonValue make_tensor(std::uint32_t node, const Arguments& arguments, std::string_view function) {
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
      const auto* row = type.kind == NodeKind::global && type.text == "torch" ? find_scalar_type(type.name) : nullptr;
      if (!row) return PythonValue::of_text("torch.Tensor of dtype " + shown(type.name), PythonValue::Kind::foreign);
      tensor.type = row->type;
    }
    if (__builtin_add_overflow(tensor.offset, name.view_offset, &tensor.offset))
      refuse("a tensor has an offset that cannot be");
    if (arguments.size() > needed) read_metadata(arguments[needed], tensor);
    tensor.storage = storage(name);
    const std::uint64_t bytes = into_.storages[tensor.storage].bytes;
    if (static_cast<std::uint64_t>(name.count) > bytes / name.type->bytes)
      refuse("the storage " + in_quotes(name.key) + " has " + std::to_string(bytes) + " bytes, fewer than its " +
             std::to_string(name.count) + " elements need");
    check_bounds(tensor, bytes);
    const std::size_t position = into_.tensors.size();
    into_.tensors.push_back(std::move(tensor));
    tensor_of_node_[node] = position;
    return PythonValue::of_tensor(position);
  }

  const PickleGraph& graph_;
  std::string_view file_;
  const FindStorage& find_storage_;
  PythonFile& into_;
  std::unordered_map<std::uint32_t, std::size_t> tensor_of_node_;
  std::unordered_map<std::string, std::size_t> storage_of_key_;
  ByteLimit limit_;  // objects and texts may be shared, so a small pickle could expand without limit
};

}  // namespace

void refuse_python(std::string_view file, const std::string& reason) {
  throw CheckpointError("MU225", std::string(file) + ": " + reason + "; the file is damaged, or no file of torch.save");
}

StorageName storage_name(const PickleGraph& graph, const PickleNode& node, std::string_view file) {
  if (node.kind != NodeKind::persistent) refuse_python(file, "a tensor has no storage");
  const PickleNode& words = graph.at(graph.items(node)[0]);
  const auto& parts = graph.items(words);
  if (words.kind != NodeKind::tuple || parts.size() < 5 || graph.at(parts[0]).text != "storage")
    refuse_python(file, "a storage has no proper name");
  StorageName name{.type = storage_class(graph.at(parts[1])),
                   .key = key_text(graph.at(parts[2])),
                   .location = std::string(graph.at(parts[3]).text.substr(0, kMaxPickleName + 1)),
                   .count = graph.at(parts[4]).integer};
  if (name.key.size() > kMaxPickleName || name.location.size() > kMaxPickleName)
    refuse_python(file, "a storage has a name of more than " + std::to_string(kMaxPickleName) + " bytes");
  if (!name.type)
    refuse_python(file, "a storage is of the class " + in_quotes(graph.at(parts[1]).name) + ", which is not known");
  if (graph.at(parts[4]).kind != NodeKind::integer || name.count < 0)
    refuse_python(file, "a storage has no proper size");
  if (parts.size() > 5 && graph.at(parts[5]).kind == NodeKind::tuple) {
    const auto& view = graph.items(graph.at(parts[5]));
    if (view.size() != 3 || graph.at(view[1]).kind != NodeKind::integer || graph.at(view[1]).integer < 0)
      refuse_python(file, "a part of a storage has no proper place");
    name.view_offset = graph.at(view[1]).integer;
  }
  return name;
}

void read_value(const PickleGraph& graph, std::uint32_t root, std::string_view file, const FindStorage& find_storage,
                PythonFile& into) {
  into.value = PythonObjects(graph, file, find_storage, into).make(root, 0);
}

}  // namespace muster::format
