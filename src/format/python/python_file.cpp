#include "format/python_file.h"

#include "base/text.h"
#include "format/little_endian.h"
#include "format/python/pickle_graph.h"
#include "format/stored_content.h"
#include "format/zip.h"

namespace muster::format {
namespace {

using Made = PythonValue::Kind;

/// Entries that LibTorch adds to every module.
bool is_bookkeeping(std::string_view name) { return name == "training" || name == "_is_full_backward_hook"; }

void flatten(PythonValue& value, const std::string& prefix, PythonValue& into) {
  for (auto& [key, part] : value.entries) {
    if (is_bookkeeping(key.text)) continue;
    const auto name = prefix + key_name(key);
    if (part.kind == Made::map && !part.text.empty()) flatten(part, name + ".", into);
    else into.add(name, std::move(part));
  }
}

bool is_optimizer(const PythonValue& root) {
  const PythonValue* state = root.find("state");
  const PythonValue* groups = root.find("param_groups");
  return root.find("pytorch_version") && state && groups && state->kind == Made::map && groups->kind == Made::map;
}

void drop_bookkeeping(PythonValue& value) {
  std::erase_if(value.entries, [](const auto& entry) { return is_bookkeeping(entry.first.text); });
}

/// The entries "PREFIX0", "PREFIX1" and so on, in order.
std::vector<PythonValue*> numbered(PythonValue& value, const std::string& prefix) {
  std::vector<PythonValue*> found;
  for (std::size_t i = 0;; ++i) {
    const auto* part = value.find(prefix + std::to_string(i));
    if (!part) return found;
    found.push_back(const_cast<PythonValue*>(part));
  }
}

/// An optimizer's archive identifies parameters by their addresses; Python numbers them over all groups.
PythonValue python_optimizer(PythonValue& root) {
  PythonValue groups{.kind = Made::list}, states{.kind = Made::map}, result{.kind = Made::map};
  std::map<std::string, std::int64_t> index_of;
  auto& stored_groups = const_cast<PythonValue&>(*root.find("param_groups"));
  for (PythonValue* stored : numbered(stored_groups, "param_groups/")) {
    PythonValue group{.kind = Made::map}, indices{.kind = Made::list};
    if (const auto* options = stored->find("options")) group = *options;
    drop_bookkeeping(group);
    for (const PythonValue* address : numbered(*stored, "params/")) {
      const auto index = static_cast<std::int64_t>(index_of.size());
      index_of.emplace(address->text, index);
      indices.items.push_back(PythonValue::of_integer(index));
    }
    group.add("params", std::move(indices));
    groups.items.push_back(std::move(group));
  }
  std::map<std::int64_t, PythonValue> sorted;
  auto& stored_states = const_cast<PythonValue&>(*root.find("state"));
  for (auto& [address, state] : stored_states.entries)
    if (const auto found = index_of.find(address.text); found != index_of.end()) {
      drop_bookkeeping(state);
      sorted.emplace(found->second, std::move(state));
    }
  for (auto& [index, state] : sorted) states.entries.emplace_back(PythonValue::of_integer(index), std::move(state));
  result.add("state", std::move(states));
  result.add("param_groups", std::move(groups));
  return result;
}

/// The contents of an archive of LibTorch's torch::save in the form that Python would have written: a module's tensors
/// by full name, an optimizer's state as its state_dict. The optimizer's steps stay as they are in the file.
PythonValue value_of_archive(PythonValue root) {
  if (root.kind != Made::map || root.text.empty()) return root;
  if (is_optimizer(root)) return python_optimizer(root);
  PythonValue flat{.kind = Made::map, .text = std::move(root.text)};
  flatten(root, "", flat);
  return flat;
}

constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{256} << 20, kFirstBytes = std::uint64_t{1} << 20,
                        kMaxWordBytes = 256;
/// Magic number at the beginning of a file of torch.save in the format before zip archives.
constexpr std::string_view kLegacyMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e", 15);
constexpr std::int64_t kLegacyProtocol = 1001;

/// The records of an archive, by their names inside the archive's folder.
class Records {
 public:
  explicit Records(const InputFile& source) : source_(source) {
    for (ZipEntry& entry : read_zip(source)) {
      std::string name = entry.name;
      const auto slash = name.find('/');
      if (slash != std::string::npos && name.substr(slash) == "/data.pkl") folder_ = name.substr(0, slash + 1);
      entries_.emplace(std::move(name), std::move(entry));
    }
    if (folder_.empty()) refuse_python(source.path().native(), "it is a zip archive without the record data.pkl");
  }

  const ZipEntry* find(const std::string& name) const {
    const auto found = entries_.find(folder_ + name);
    return found == entries_.end() ? nullptr : &found->second;
  }
  std::string text(const std::string& name, std::uint64_t limit) const {
    const ZipEntry* entry = find(name);
    return entry ? read_record(source_, *entry, limit) : "";
  }

 private:
  const InputFile& source_;
  std::string folder_;  // with the slash at its end
  std::unordered_map<std::string, ZipEntry> entries_;
};

PythonFile read_zip_form(const InputFile& source) {
  const Records records(source);
  if (const std::string order = records.text("byteorder", kMaxWordBytes); !order.empty() && order != "little")
    refuse_python(
        source.path().native(),
        "its bytes are in " + (order == "big" ? std::string("big-endian") : std::string("an unknown")) + " order");
  PythonFile file;
  if (records.find("constants.pkl")) file.form = PythonFile::Form::archive;
  const std::string pickle = records.text("data.pkl", kMaxPickleBytes);
  PickleGraph graph;
  std::size_t position = 0;
  std::uint32_t root = 0;
  try {
    root = read_pickle(pickle, position, graph, source.path().native());
  } catch (const PickleCutOff&) {
    refuse_python(source.path().native(), "its pickle is cut off");
  }
  const auto find_storage = [&](const std::string& key) -> std::optional<PythonStorage> {
    const ZipEntry* entry = records.find("data/" + key);
    if (!entry) return std::nullopt;
    if (!entry->stored)
      refuse_python(source.path().native(), "the record " + in_quotes("data/" + key) + " is compressed");
    return PythonStorage{.offset = entry->offset, .bytes = entry->bytes, .crc = entry->crc, .has_crc = true};
  };
  read_value(graph, root, source.path().native(), find_storage, file);
  if (file.form == PythonFile::Form::archive) file.value = value_of_archive(std::move(file.value));
  return file;
}

/// The five pickles at the beginning of a legacy file.
struct LegacyPickles {
  std::string bytes;
  PickleGraph graph;
  std::uint32_t root = 0, keys = 0;
  std::size_t end = 0;
};

LegacyPickles read_legacy_pickles(const InputFile& source) {
  for (std::uint64_t wanted = kFirstBytes;; wanted *= 8) {
    const std::uint64_t given = std::min({wanted, source.size(), kMaxPickleBytes});
    LegacyPickles pickles{.bytes = source.text(0, given), .graph = {}};
    const auto next = [&] { return read_pickle(pickles.bytes, pickles.end, pickles.graph, source.path().native()); };
    try {
      next();
      const PickleNode& protocol = pickles.graph.at(next());
      if (protocol.kind != PickleNode::Kind::integer || protocol.integer != kLegacyProtocol)
        refuse_python(source.path().native(), "it is of another protocol than " + std::to_string(kLegacyProtocol));
      const PickleNode& system = pickles.graph.at(next());
      const auto& facts = pickles.graph.entries(system);
      for (std::size_t i = 0; i + 1 < facts.size(); i += 2)
        if (pickles.graph.at(facts[i]).text == "little_endian" && pickles.graph.at(facts[i + 1]).integer == 0)
          refuse_python(source.path().native(), "its bytes are in big-endian order");
      pickles.root = next();
      pickles.keys = next();
      return pickles;
    } catch (const PickleCutOff&) {
      if (given < wanted) refuse_python(source.path().native(), "its pickles are cut off");
    }
  }
}

/// The storages that the pickle names, by key: the first occurrence determines the width of elements.
std::unordered_map<std::string, StorageName> named_storages(const PickleGraph& graph, std::string_view file) {
  std::unordered_map<std::string, StorageName> names;
  for (const PickleNode& node : graph.nodes)
    if (node.kind == PickleNode::Kind::persistent) {
      const auto& words = graph.items(graph.at(graph.items(node)[0]));
      if (!words.empty() && graph.at(words[0]).text != "storage") continue;  // a module's source, in very old files
      StorageName name = storage_name(graph, node, file);
      std::string key = name.key;
      names.emplace(std::move(key), std::move(name));
    }
  return names;
}

/// The storages follow the pickles, each as its number of elements and its bytes.
std::unordered_map<std::string, PythonStorage> legacy_places(const InputFile& source, const LegacyPickles& pickles) {
  const auto names = named_storages(pickles.graph, source.path().native());
  std::unordered_map<std::string, PythonStorage> places;
  std::uint64_t at = pickles.end;
  for (const auto item : pickles.graph.items(pickles.graph.at(pickles.keys))) {
    const PickleNode& node = pickles.graph.at(item);
    const std::string key =
        node.kind == PickleNode::Kind::integer ? std::to_string(node.integer) : std::string(node.text);
    const auto name = names.find(key);
    if (name == names.end()) refuse_python(source.path().native(), "it has a storage that nothing names");
    if (source.size() - at < sizeof(std::int64_t)) refuse_python(source.path().native(), "its storages are cut off");
    const auto count = number_at<std::int64_t>(source.text(at, sizeof(std::int64_t)), 0);
    at += sizeof(std::int64_t);
    const std::uint64_t width = name->second.type->bytes;
    if (count < 0 || static_cast<std::uint64_t>(count) > (source.size() - at) / width)
      refuse_python(source.path().native(), "its storages are cut off");
    if (!places.emplace(key, PythonStorage{.offset = at, .bytes = static_cast<std::uint64_t>(count) * width}).second)
      refuse_python(source.path().native(), "it has one storage twice");
    at += static_cast<std::uint64_t>(count) * width;
  }
  return places;
}

PythonFile read_legacy_form(const InputFile& source) {
  const LegacyPickles pickles = read_legacy_pickles(source);
  const auto places = legacy_places(source, pickles);
  PythonFile file{.form = PythonFile::Form::legacy, .value = {}, .storages = {}, .tensors = {}};
  const auto find_storage = [&](const std::string& key) {
    const auto found = places.find(key);
    return found == places.end() ? std::nullopt : std::optional(found->second);
  };
  read_value(pickles.graph, pickles.root, source.path().native(), find_storage, file);
  return file;
}

bool is_legacy(const InputFile& source) {
  return source.size() > kLegacyMagic.size() && source.text(0, kLegacyMagic.size()) == kLegacyMagic;
}

}  // namespace

PythonValue PythonValue::of_integer(std::int64_t value) { return {.kind = Kind::integer, .integer = value}; }

PythonValue PythonValue::of_text(std::string value, Kind kind) { return {.kind = kind, .text = std::move(value)}; }

PythonValue PythonValue::of_tensor(std::size_t position) {
  return {.kind = Kind::tensor, .integer = static_cast<std::int64_t>(position)};
}

void PythonValue::add(std::string key, PythonValue value) {
  entries.emplace_back(of_text(std::move(key)), std::move(value));
}

const PythonValue* PythonValue::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (name.kind == Kind::text && name.text == key) return &value;
  return nullptr;
}

bool is_decimal_key(std::string_view text) {
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  const bool all = !digits.empty() && digits.size() <= 18 &&
                   std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  return all && (text == "0" || digits[0] != '0');
}

std::int64_t element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

bool is_dense(const PythonTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return element_count(tensor.shape) == 0;
    expected *= tensor.shape[i];
  }
  return true;
}

bool is_python_file(const InputFile& source) { return is_zip(source) || is_legacy(source); }

PythonFile read_python_file(const InputFile& source) {
  if (is_zip(source)) return read_zip_form(source);
  if (is_legacy(source)) return read_legacy_form(source);
  refuse_python(source.path().native(),
                "it begins neither as an archive of torch.save nor as a file of it from before PyTorch 1.6");
}

std::string advice_about(std::string_view foreign_class) {
  if (foreign_class.starts_with("torch._utils._rebuild_sparse"))
    return "call to_dense() on sparse tensors before saving them";
  if (foreign_class.starts_with("torch._utils._rebuild_qtensor"))
    return "call dequantize() on quantized tensors before saving them";
  if (foreign_class.starts_with("torch._utils._rebuild_meta"))
    return "tensors on the meta device have no values to load";
  if (foreign_class.starts_with("torch._utils._rebuild_nested"))
    return "save the parts of nested tensors, from unbind()";
  if (foreign_class.starts_with("numpy"))
    return "turn numpy arrays into tensors by torch.from_numpy, and numpy numbers into int or float";
  if (foreign_class == "argparse.Namespace") return "save vars(args), not args";
  if (foreign_class.starts_with("int of more")) return "save it as text";
  if (foreign_class.find("torch.nn.modules") != std::string_view::npos ||
      foreign_class.find("torch.optim") != std::string_view::npos)
    return "save its state_dict(), not the object";
  return "save tensors, numbers, texts, lists and dictionaries only";
}

}  // namespace muster::format
