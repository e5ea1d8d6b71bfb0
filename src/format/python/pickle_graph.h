#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace muster::format {

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

}  // namespace muster::format
