#include "stored_content.h"

#include <cstring>

#include "base/text.h"
#include "format/checkpoint/stored_checkpoint.h"
#include "manifest.h"
#include "muster/base/error.h"
#include "weight_set.h"
#include "zip.h"

namespace muster::format {
namespace {

namespace fs = std::filesystem;
using Kind = PythonValue::Kind;

/// Adds tensors that were dropped as views of another one: the metadata names them.
void add_tied(StoredContent& stored) {
  std::vector<PythonValue::Entry> tied;
  for (const auto& [name, kept] : stored.metadata) {
    const PythonValue* tensor = stored.content.value.find(kept);
    if (tensor && !stored.content.value.find(name)) tied.emplace_back(PythonValue::of_text(name), *tensor);
  }
  auto& entries = stored.content.value.entries;
  entries.insert(entries.end(), tied.begin(), tied.end());
}

StoredContent content_of(const WeightSet& set) {
  StoredContent stored;
  stored.kind = set.index ? "safetensors files with an index" : "safetensors file";
  stored.content.value.kind = Kind::map;
  std::map<std::string, std::string> file_of;
  for (const auto& file : set.files) {
    const auto input = std::make_shared<const InputFile>(file);
    const Header header = read_header(*input);
    stored.metadata.insert(header.metadata.begin(), header.metadata.end());
    for (const TensorEntry& entry : header.tensors) {
      if (const auto [first, is_new] = file_of.emplace(entry.name, file.filename().string()); !is_new)
        throw CheckpointError("MU205", "tensor " + in_quotes(entry.name) + " is in two files, " + first->second +
                                           " and " + file.string());
      stored.content.value.add(entry.name, add_tensor(stored, input, entry));
    }
  }
  require_indexed(set, file_of);
  std::sort(stored.content.value.entries.begin(), stored.content.value.entries.end(),
            [](const auto& a, const auto& b) { return a.first.text < b.first.text; });
  add_tied(stored);
  return stored;
}

StoredContent open_torch_file(const std::shared_ptr<const InputFile>& input) {
  StoredContent stored;
  stored.content = read_python_file(*input);
  stored.kind = stored.content.form == PythonFile::Form::zip      ? "torch file"
                : stored.content.form == PythonFile::Form::legacy ? "torch file from before PyTorch 1.6"
                                                                  : "LibTorch archive";
  for (const PythonStorage& storage : stored.content.storages)
    stored.extents.push_back({{input, storage.offset, storage.bytes}});
  return stored;
}

/// Appends the contents of another file; both must be dictionaries.
void append(StoredContent& stored, StoredContent more) {
  const auto move_all = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  const auto first = static_cast<std::int64_t>(stored.content.tensors.size());
  each_tensor(more.content.value, [&](PythonValue& tensor) { tensor.integer += first; });
  for (auto& tensor : more.content.tensors) tensor.storage += stored.content.storages.size();
  move_all(more.content.value.entries, stored.content.value.entries);
  move_all(more.content.tensors, stored.content.tensors);
  move_all(more.content.storages, stored.content.storages);
  move_all(more.extents, stored.extents);
}

StoredContent open_torch_files(const WeightSet& set) {
  StoredContent stored;
  stored.kind = "torch files with an index";
  stored.content.value.kind = Kind::map;
  for (const auto& file : set.files) append(stored, open_torch_file(std::make_shared<const InputFile>(file)));
  require_listed(set, [&](const std::string& name) { return stored.content.value.find(name) != nullptr; });
  return stored;
}

StoredContent open_weight_files(const fs::path& path) {
  StoredContent stored;
  open_weight_set(path, [&](const WeightSet& set) {
    if (!is_of_python(set)) stored = content_of(set);
    else stored = set.index ? open_torch_files(set) : open_torch_file(std::make_shared<const InputFile>(set.files[0]));
  });
  return stored;
}

bool is_plain(const PythonValue& value) {
  if (value.kind == Kind::map) return value.entries.empty();
  if (value.kind == Kind::tensor || value.kind == Kind::foreign) return false;
  return std::all_of(value.items.begin(), value.items.end(), is_plain);
}

/// Limit on the length of all paths, since a small file may share one name among many values.
constexpr std::size_t kMostPlaces = std::size_t{1} << 30;

void add_leaves(const PythonValue& value, const std::string& path, std::vector<ContentLeaf>& leaves,
                std::size_t& bytes) {
  const bool sequence = value.kind == Kind::list || value.kind == Kind::tuple;
  if (!value.entries.empty() || (sequence && !is_plain(value))) {
    each_part(value, [&](const std::string& name, const PythonValue& part) {
      add_leaves(part, path.empty() ? name : path + "/" + name, leaves, bytes);
    });
  } else {
    bytes += path.size();
    if (bytes > kMostPlaces)
      throw CheckpointError("MU225", "the names of what is in the file unfold to more than " +
                                         std::to_string(kMostPlaces) + " bytes; it is damaged, or no file of weights");
    leaves.push_back({path, &value});
  }
}

/// Copies the elements of a strided tensor, the first of which is at `from`, in row-major order: from this dimension
/// on. Returns the end of the copy.
char* gather(const PythonTensor& tensor, std::int64_t width, const char* from, char* to, std::size_t dimension = 0) {
  const bool is_one = dimension == tensor.shape.size();
  if (is_one || (dimension + 1 == tensor.shape.size() && tensor.strides[dimension] == 1)) {
    const std::int64_t bytes = is_one ? width : tensor.shape[dimension] * width;
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return to + bytes;
  }
  for (std::int64_t i = 0; i < tensor.shape[dimension]; ++i)
    to = gather(tensor, width, from + i * tensor.strides[dimension] * width, to, dimension + 1);
  return to;
}

}  // namespace

PythonValue add_tensor(StoredContent& stored, const std::shared_ptr<const InputFile>& file, const TensorEntry& entry) {
  const DtypeInfo* row = find_scalar_type(entry.type);
  const bool pairs = entry.type == ElementType::f4;
  if (!row || (pairs && (entry.shape.empty() || entry.shape.back() % 2 != 0)))
    throw CheckpointError("MU207", file->path().string() + ": tensor " + in_quotes(entry.name) + " has dtype " +
                                       std::string(name_of(entry.type)) +
                                       (row ? " in odd number, which LibTorch has not" : ", which LibTorch has not"));
  PythonTensor tensor{
      .storage = stored.content.storages.size(), .type = row->type, .offset = 0, .shape = entry.shape, .strides = {}};
  if (pairs) tensor.shape.back() /= 2;
  tensor.strides.resize(tensor.shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0; stride *= std::max<std::int64_t>(tensor.shape[i], 1))
    tensor.strides[i] = stride;
  stored.content.storages.push_back({.key = "", .location = "cpu", .offset = entry.offset, .bytes = entry.bytes});
  stored.extents.push_back({{file, entry.offset, entry.bytes}});
  stored.content.tensors.push_back(std::move(tensor));
  return PythonValue::of_tensor(stored.content.tensors.size() - 1);
}

StoredContent open_content(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    return fs::exists(path / kManifestName, ignored) ? open_checkpoint(path) : open_weight_files(path);
  if (path.filename() == kManifestName) return open_checkpoint(path.parent_path());
  return open_weight_files(path);
}

std::string key_name(const PythonValue& key) { return key.kind == Kind::text ? key.text : to_text(key, 80); }

std::vector<ContentLeaf> leaves_of(const PythonValue& value) {
  std::vector<ContentLeaf> leaves;
  std::size_t bytes = 0;
  add_leaves(value, "", leaves, bytes);
  std::sort(leaves.begin(), leaves.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return leaves;
}

std::string to_text(const PythonValue& value, std::size_t limit) {
  switch (value.kind) {
    case Kind::none: return "None";
    case Kind::boolean: return value.integer ? "True" : "False";
    case Kind::integer: return std::to_string(value.integer);
    case Kind::number: return to_text(Json(value.number));
    case Kind::text: return '"' + shown(value.text, std::max<std::size_t>(limit, 4)) + '"';
    case Kind::bytes: return std::to_string(value.text.size()) + " bytes";
    case Kind::map: return "{}";
    case Kind::tensor: return "tensor";
    case Kind::foreign: return "<" + value.text + ">";
    case Kind::list:
    case Kind::tuple: break;
  }
  std::string text = value.kind == Kind::list ? "[" : "(";
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    if (text.size() > limit) {
      text += ", ... " + std::to_string(value.items.size()) + " in all";
      break;
    }
    text += (i ? ", " : "") + to_text(value.items[i], limit - text.size());
  }
  return text + (value.kind == Kind::list ? "]" : ")");
}

std::uint64_t dense_bytes(const PythonTensor& tensor) {
  return static_cast<std::uint64_t>(element_count(tensor.shape)) * dtype_info(tensor.type).bytes;
}

std::string_view ContentBytes::of_storage(std::size_t storage) {
  const auto bytes_of = [&](const Extent& extent) -> std::string_view {
    if (extent.bytes == 0) return {};
    auto& mapping = mappings_[extent.file.get()];
    if (!mapping) mapping = std::make_unique<MappedFile>(*extent.file, MappedFile::Access::read);
    return {reinterpret_cast<const char*>(mapping->data()) + extent.offset, extent.bytes};
  };
  const auto& extents = content_.extents[storage];
  if (extents.size() != 1) {
    joined_.clear();
    for (const Extent& extent : extents) joined_ += bytes_of(extent);
    return joined_;
  }
  const std::string_view bytes = bytes_of(extents.front());
  const PythonStorage& known = content_.content.storages[storage];
  checked_.resize(content_.content.storages.size());
  if (known.has_crc && !checked_[storage] && crc32(bytes) != known.crc)
    throw CheckpointError("MU225", extents.front().file->path().string() + ": the checksum of the storage " +
                                       in_quotes(known.key) + " is wrong; the file is damaged");
  checked_[storage] = true;
  return bytes;
}

std::string_view ContentBytes::of_tensor(const PythonTensor& tensor) {
  constexpr std::uint64_t kFree = std::uint64_t{1} << 30, kMostOften = 1024;
  const std::string_view storage = of_storage(tensor.storage);
  const std::uint64_t bytes = dense_bytes(tensor);
  if (tensor.conjugate || tensor.negative)
    throw CheckpointError(
        "MU229",
        "a tensor is lazily conjugated or negated, which only LibTorch can resolve; call resolve_conj() and "
        "resolve_neg() on it before it is saved");
  if (bytes > kFree && bytes / kMostOften > storage.size())
    throw CheckpointError("MU229", "a tensor repeats " + std::to_string(storage.size()) + " bytes until they are " +
                                       std::to_string(bytes) + "; save it before it is expanded");
  const std::int64_t width = dtype_info(tensor.type).bytes, begin = tensor.offset * width;
  std::string_view result;
  if (is_dense(tensor)) {
    if (bytes > 0) result = storage.substr(static_cast<std::size_t>(begin), bytes);
  } else {
    gathered_.resize(bytes);
    gather(tensor, width, storage.data() + begin, gathered_.data());
    result = gathered_;
  }
  if (tensor.type == ScalarType::boolean &&
      std::any_of(result.begin(), result.end(), [](char byte) { return byte != 0 && byte != 1; }))
    throw CheckpointError("MU225", "a bool has a byte other than 0 and 1; the file is damaged");
  return result;
}

}  // namespace muster::format
