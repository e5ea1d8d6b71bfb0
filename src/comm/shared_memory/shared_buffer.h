#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/peer_access.h"

namespace muster::comm {

/// Memory of a group for tensors. It has one part per rank, which that rank allocated.
struct SharedBuffer {
  uint64_t number = 0;              ///< number of the buffer, equal on all ranks
  std::size_t bytes = 0;            ///< size of each part
  PeerAccess access{};              ///< how a rank may access the parts of others
  std::vector<std::byte*> parts{};  ///< address of each part, by rank
  std::byte* row = nullptr;         ///< PeerAccess::read_contiguous: address of all parts in a row, for reading only
  std::shared_ptr<void> keeps{};    ///< owner of the memory
};

}  // namespace muster::comm
