#pragma once

#include <cstdint>

namespace muster::comm {

/// What a rank may do with the memory that another rank of its host allocated for all of them.
enum class PeerAccess : uint8_t {
  read,
  read_contiguous,  ///< read; the parts of all ranks appear one after another, in rank order
  write,            ///< write results of reductions; after a CommError the contents are undefined, and may still change
};

}  // namespace muster::comm
