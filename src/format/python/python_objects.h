#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/byte_limit.h"
#include "format/python/pickle_graph.h"
#include "format/python_file.h"

namespace muster::format {

/// Limit on the nesting of values.
inline constexpr int kMaxPythonDepth = 200;
/// Limit on the length of a dictionary key: keys are joined to paths, once for each value below them.
inline constexpr std::size_t kMaxPythonKey = 4096;

[[noreturn]] void refuse_python(std::string_view file, const std::string& reason);

/// The location of a storage's bytes.
struct StoragePlace {
  std::uint64_t offset = 0, bytes = 0;
  std::uint32_t crc = 0;
  bool has_crc = false;
};

/// The name of an object outside of the pickle: a storage, or a part of one.
struct StorageName {
  const DtypeInfo* type = nullptr;  ///< element type; uint8 for an untyped storage
  std::string key, location;
  std::int64_t count = 0;        ///< number of elements
  std::int64_t view_offset = 0;  ///< offset in elements; nonzero only in files before PyTorch 0.4
};

/// Reads the name of a storage. Throws: CheckpointError MU225.
StorageName storage_name(const PickleGraph& graph, const PickleNode& node, std::string_view file);

/// Converts descriptions of objects to values, for classes and functions with known names.
class PythonObjects {
 public:
  /// `place_of` finds a storage's bytes by its key.
  PythonObjects(const PickleGraph& graph, std::string_view file,
                std::function<std::optional<StoragePlace>(const std::string&)> place_of);

  /// The value of a node; tensors and storages are added to `into`.
  /// Throws: CheckpointError MU225.
  PythonValue value(std::uint32_t node, PythonFile& into);

 private:
  PythonValue make(std::uint32_t node, int depth);
  PythonValue make_sequence(PythonValue::Kind kind, const std::vector<std::uint32_t>& items, int depth);
  PythonValue make_map(const std::vector<std::uint32_t>& pairs, int depth);
  PythonValue make_global(const PickleNode& node) const;
  PythonValue make_object(std::uint32_t node, int depth);
  std::optional<PythonValue> make_collection(std::string_view name, const PickleNode& node, int depth);
  std::optional<PythonValue> make_tensor_like(std::string_view name, std::uint32_t node, int depth);
  PythonValue make_module(const PickleNode& node, int depth);
  PythonValue make_numpy_scalar(const std::vector<std::uint32_t>& arguments);
  PythonValue make_bytes(const std::vector<std::uint32_t>& arguments);
  PythonValue make_text(std::string_view text, PythonValue::Kind kind);
  PythonValue make_tensor(std::uint32_t node, const std::vector<std::uint32_t>& arguments, std::string_view function);

  const std::vector<std::uint32_t>& arguments_of(const PickleNode& object) const;
  std::string name_of_global(const PickleNode& node) const;
  std::int64_t integer(std::uint32_t node, const char* what) const;
  std::vector<std::int64_t> integers(std::uint32_t node, const char* what) const;
  std::string text(std::uint32_t node, const char* what);
  void charge(std::uint64_t bytes);
  std::size_t storage(const StorageName& name);
  void read_metadata(std::uint32_t node, PythonTensor& tensor) const;
  void check_bounds(const PythonTensor& tensor, std::uint64_t bytes) const;
  [[noreturn]] void refuse(const std::string& reason) const { refuse_python(file_, reason); }

  const PickleGraph& graph_;
  std::string_view file_;
  std::function<std::optional<StoragePlace>(const std::string&)> place_of_;
  PythonFile* into_ = nullptr;
  std::unordered_map<std::uint32_t, std::size_t> tensor_of_node_;
  std::unordered_map<std::string, std::size_t> storage_of_key_;
  ByteLimit limit_;
};

}  // namespace muster::format
