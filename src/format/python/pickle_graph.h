#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace muster::format {

/// One object of a pickle, as it was described; nothing of it has been called.
struct PickleNode {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    huge,  ///< An integer beyond 64 bits; its bytes are the text.
    number,
    text,
    bytes,
    list,
    tuple,
    map,
    set,
    global,      ///< A class or function: the text is its module, `name` its name.
    object,      ///< What a class or function (items[0]) would give for arguments (items[1]), with what was set later.
    persistent,  ///< Something kept outside of the pickle, named by items[0].
  };
  Kind kind = Kind::none;
  std::uint32_t items = 0;    ///< Index into `lists`.
  std::uint32_t entries = 0;  ///< Index into `lists`: key, value, key, value.
  std::uint32_t state = 0;    ///< The node given to the object's __setstate__; 0 if none.
  union {
    std::int64_t integer = 0;
    double number;
  };
  std::string_view text, name;  ///< Into the pickle's bytes.
};

/// All objects of one or more pickles. Objects may contain each other, also in circles.
struct PickleGraph {
  std::vector<PickleNode> nodes{1};                  ///< The first is None, and stands for "nothing" too.
  std::vector<std::vector<std::uint32_t>> lists{1};  ///< The first is empty.
  std::uint64_t bytes = 0;                           ///< Read so far.

  const PickleNode& at(std::uint32_t node) const { return nodes[node]; }
  const std::vector<std::uint32_t>& items(const PickleNode& node) const { return lists[node.items]; }
  const std::vector<std::uint32_t>& entries(const PickleNode& node) const { return lists[node.entries]; }
};

/// Thrown when a pickle goes on beyond the bytes given.
struct PickleCutOff {};

/// Largest number of objects in a graph.
inline constexpr std::size_t kMaxPickleNodes = std::size_t{1} << 23;
/// Longest name of a class or module, and of a storage.
inline constexpr std::size_t kMaxPickleName = 1024;

/// Reads the pickle that begins at `position`, sets the position behind it, and returns its root. Protocols 2 to 5.
/// Nothing is called and nothing imported: time and memory grow with the bytes read, whatever they say.
/// Requires: the bytes outlive the graph; `file` is for messages.
/// Throws: PickleCutOff; CheckpointError MU225 for what no pickle of Python says, or too many objects or too much
/// memory for them.
std::uint32_t read_pickle(std::string_view bytes, std::size_t& position, PickleGraph& graph, std::string_view file);

}  // namespace muster::format
