#pragma once

#include <string>

#include "muster/cluster/cluster.h"
#include "muster/comm/communicator.h"
#include "muster/comm/options.h"

namespace muster::comm {

/// The functions of mpi.h for a communicator given by its MPI_Comm_c2f handle.
std::string backend_over_mpi(int communicator, const std::string& backend);
ClusterReader ranks_over_mpi(int communicator, std::chrono::milliseconds timeout = GroupOptions().rendezvous_timeout);
Communicator connect_over_mpi(int communicator, GroupOptions options);

}  // namespace muster::comm
