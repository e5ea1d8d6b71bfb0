#pragma once

#include <algorithm>
#include <unordered_map>

#include "format/python_file.h"

namespace muster::format {

/// Limits the memory that the contents of a file may demand, in proportion to the size of the file: a small file can
/// refer to one object many times.
class ByteLimit {
 public:
  /// `given`: size of the file's description in bytes.
  explicit ByteLimit(std::uint64_t given = 0) : most_(std::min(kMost, kFree + kEach * given)), left_(most_) {}

  /// False if the limit is exceeded.
  bool take(std::uint64_t bytes) noexcept {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  std::uint64_t most() const noexcept { return most_; }

 private:
  // One byte of a pickle may stand for an object of several hundred bytes.
  static constexpr std::uint64_t kEach = 256, kFree = std::uint64_t{16} << 20, kMost = std::uint64_t{4} << 30;
  std::uint64_t most_, left_;
};

/// One object of a pickle as it is described there; nothing of it has been called.
struct PickleNode {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    huge,  ///< an integer beyond 64 bits; its bytes are the text
    number,
    text,
    bytes,
    list,
    tuple,
    map,
    set,
    global,      ///< a class or function: `text` is its module, `name` its name
    object,      ///< what a class or function (items[0]) would return for arguments (items[1]), with later changes
    persistent,  ///< an object stored outside of the pickle, named by items[0]
  };
  Kind kind = Kind::none;
  std::uint32_t items = 0;    ///< index into `lists`
  std::uint32_t entries = 0;  ///< index into `lists`: key, value, key, value
  std::uint32_t state = 0;    ///< node given to the object's __setstate__; 0 if none
  union {
    std::int64_t integer = 0;
    double number;
  };
  std::string_view text, name;  ///< views of the pickle's bytes
};

/// All objects of one or more pickles. Objects may contain each other, even in cycles.
struct PickleGraph {
  std::vector<PickleNode> nodes{1};                  ///< nodes; the first is None, and also means "none"
  std::vector<std::vector<std::uint32_t>> lists{1};  ///< lists; the first is empty
  std::uint64_t bytes = 0;                           ///< bytes read so far

  const PickleNode& at(std::uint32_t node) const { return nodes[node]; }
  const std::vector<std::uint32_t>& items(const PickleNode& node) const { return lists[node.items]; }
  const std::vector<std::uint32_t>& entries(const PickleNode& node) const { return lists[node.entries]; }
};

/// Thrown when a pickle continues beyond the given bytes.
struct PickleCutOff {};

/// Limit on the number of objects in a graph.
inline constexpr std::size_t kMaxPickleNodes = std::size_t{1} << 23;
/// Limit on the length of the name of a class, module or storage.
inline constexpr std::size_t kMaxPickleName = 1024;

/// Reads the pickle that begins at `position`, sets `position` behind it, and returns its root. Protocols 2 to 5.
/// Nothing is called or imported: time and memory are proportional to the bytes read, whatever they contain.
/// Requires: the bytes outlive the graph; `file` is for messages.
/// Throws: PickleCutOff; CheckpointError MU225 for opcodes that Python does not write, and for too many objects or too
/// much memory.
std::uint32_t read_pickle(std::string_view bytes, std::size_t& position, PickleGraph& graph, std::string_view file);

/// Limit on the nesting of values.
inline constexpr int kMaxPythonDepth = 200;
/// Limit on the length of a dictionary key: keys are joined to paths, once for each value below them.
inline constexpr std::size_t kMaxPythonKey = 4096;

[[noreturn]] void refuse_python(std::string_view file, const std::string& reason);

/// The name of an object outside of the pickle: a storage, or a part of one.
struct StorageName {
  const DtypeInfo* type = nullptr;  ///< element type; uint8 for an untyped storage
  std::string key, location;
  std::int64_t count = 0;        ///< number of elements
  std::int64_t view_offset = 0;  ///< offset in elements; nonzero only in files before PyTorch 0.4
};

/// Reads the name of a storage. Throws: CheckpointError MU225.
StorageName storage_name(const PickleGraph& graph, const PickleNode& node, std::string_view file);

/// Returns the position, size and checksum of a storage by its key; nullopt if the file has none.
using FindStorage = std::function<std::optional<PythonStorage>(const std::string& key)>;

/// Sets the value of `into` to that of a node, and adds its tensors and storages. Only classes and functions with known
/// names are understood. Throws: CheckpointError MU225.
void read_value(const PickleGraph& graph, std::uint32_t root, std::string_view file, const FindStorage& find_storage,
                PythonFile& into);

}  // namespace muster::format
