#pragma once

#include <cstdint>

namespace muster::comm {

/// What ranks may do with the memory that another rank of their host made for all of them.
enum class PeerAccess : uint8_t {
  read,
  read_contiguous,  ///< read; the parts of all ranks are seen one after another, in rank order
  write,            ///< results of reductions; after a CommError what is there is undefined, and may still change
};

}  // namespace muster::comm
