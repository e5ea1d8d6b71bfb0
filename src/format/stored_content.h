#pragma once  // for other rooms

#include <unordered_map>

#include "format/input_file.h"
#include "format/python_file.h"

/// A common interface for files and folders of weights of any kind. This file does not use LibTorch tensors.
namespace muster::format {

/// A contiguous range of bytes in a file.
struct Extent {
  std::shared_ptr<const InputFile> file;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// The contents of a file or a folder, without the tensors' bytes.
struct StoredContent {
  std::string kind;  ///< description: "safetensors file"
  bool is_checkpoint = false;
  Metadata metadata;                         ///< metadata of safetensors files
  PythonFile content;                        ///< values; for safetensors, a map from names to tensors
  std::vector<std::vector<Extent>> extents;  ///< locations of each storage's bytes
};

/// Opens `path`: a torch file of any form, a safetensors file, an index of such files or a folder with one, or a
/// checkpoint folder, whose value has "shared", "own" (a list over ranks) and "sliced" (the full tensors of those that
/// are sharded over ranks). Reads no tensor; for a checkpoint, sizes and checksums of its text files are compared.
/// Throws: CheckpointError MU200, MU201, MU205, MU207, MU210, MU213, MU214, MU216, MU225.
StoredContent open_content(const std::filesystem::path& path);

/// The bytes of storages, read and checked on request: checksums of torch files, bools of 0 and 1.
/// Thread safety: one thread at a time.
class ContentBytes {
 public:
  /// Requires: the content outlives this object.
  explicit ContentBytes(const StoredContent& content) : content_(content) {}

  /// The bytes of a storage, valid until the next call. Throws: CheckpointError MU200, MU225.
  std::string_view of_storage(std::size_t storage);
  /// A tensor's elements in row-major order, valid until the next call.
  /// Throws: as of_storage(); CheckpointError MU229 for a lazily conjugated or negated tensor, and for one that repeats
  /// a few elements very many times.
  std::string_view of_tensor(const PythonTensor& tensor);

 private:
  const StoredContent& content_;
  std::unordered_map<const InputFile*, std::unique_ptr<MappedFile>> mappings_;
  std::string joined_, gathered_;
  std::vector<bool> checked_;
};

/// A leaf: a value other than a dictionary or a list with nested values. Its path joins names and indices by "/".
struct ContentLeaf {
  std::string path;
  const PythonValue* value = nullptr;
};

/// A dictionary key as a name: text unchanged, other values as Python would print them.
std::string key_name(const PythonValue& key);

/// Calls f(name, part) for the entries of a map and the items of a list, which are named by their positions.
template <class Value, class F>
void each_part(Value& value, F&& f) {
  for (auto& [key, part] : value.entries) f(key_name(key), part);
  for (std::size_t i = 0; i < value.items.size(); ++i) f(std::to_string(i), value.items[i]);
}

/// Calls f(value) for each tensor in the value.
template <class F>
void each_tensor(PythonValue& value, F&& f) {
  if (value.kind == PythonValue::Kind::tensor) f(value);
  for (auto& [key, part] : value.entries) each_tensor(part, f);
  for (auto& item : value.items) each_tensor(item, f);
}

/// All leaves, sorted by path. Lists of plain values are leaves. Requires: the value outlives the result.
std::vector<ContentLeaf> leaves_of(const PythonValue& value);

/// A plain value as Python would print it, at most about `limit` characters.
std::string to_text(const PythonValue& value, std::size_t limit);

/// The size in bytes of the tensor if it were dense.
std::uint64_t dense_bytes(const PythonTensor& tensor);

}  // namespace muster::format
