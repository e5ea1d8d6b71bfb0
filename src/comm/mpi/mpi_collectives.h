#pragma once

#include <chrono>
#include <memory>

#include "comm/mpi/mpi_transport.h"

namespace muster::comm {

/// The operations of a group by MPI's own collectives, where MPI has them: broadcast and all_gather, and all_reduce and
/// reduce_scatter by sums of float32, float64 and integers. All else, tensors that fit a frame, and groups of some of
/// the ranks go as by Pairwise. Headers are exchanged first in any case.
/// Requires: nothing else uses the transport's communicator, of which the group has all ranks.
std::unique_ptr<Collectives> make_mpi_collectives(std::unique_ptr<TransportOverMpi> transport,
                                                  std::chrono::milliseconds connect_timeout);

}  // namespace muster::comm
