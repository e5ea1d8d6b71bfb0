#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace muster::comm {

/// Memory of a group for tensors, one part per rank: a rank writes its own and reads those of the others.
struct SharedBuffer {
  uint64_t number = 0;              ///< the same on all ranks
  std::size_t bytes = 0;            ///< of each part
  std::vector<std::byte*> parts{};  ///< by rank
  std::shared_ptr<void> keeps{};    ///< the memory
};

}  // namespace muster::comm
