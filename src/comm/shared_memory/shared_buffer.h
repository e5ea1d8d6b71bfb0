#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/peer_access.h"

namespace muster::comm {

/// Memory of a group for tensors, one part per rank, which that rank made.
struct SharedBuffer {
  uint64_t number = 0;              ///< the same on all ranks
  std::size_t bytes = 0;            ///< of each part
  PeerAccess access{};              ///< to the parts of others
  std::vector<std::byte*> parts{};  ///< by rank
  std::byte* row = nullptr;         ///< PeerAccess::read_contiguous: all parts, for reading only
  std::shared_ptr<void> keeps{};    ///< the memory
};

}  // namespace muster::comm
