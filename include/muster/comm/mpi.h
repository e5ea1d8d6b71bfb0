#pragma once

#include <string>

#include <mpi.h>

#include "muster/cluster/cluster.h"
#include "muster/comm/communicator.h"
#include "muster/comm/detail/mpi_ranks.h"
#include "muster/comm/options.h"

/// Groups of MPI ranks for programs that call MPI themselves, and so are compiled with its header. All other programs
/// use the backend "mpi", which needs no header, and get the ranks of MPI_COMM_WORLD.
/// Requires: MPI is initialised, with MPI_THREAD_MULTIPLE if operations are to run concurrently with the program; it is
/// the MPI that Muster was built with (MU568). Muster duplicates communicators, so its messages never match those of
/// the program; communicators may be freed once the groups are formed.
namespace muster::comm {

/// The ranks of `communicator` as a group, with the options of connect(): the backend is "mpi".
/// Collective: every rank of `communicator`. Throws: as comm::connect() with the backend "mpi"; ConfigError (MU059) for
/// another backend.
inline Communicator connect(MPI_Comm communicator, const GroupOptions& options = {}) {
  return connect_over_mpi(MPI_Comm_c2f(communicator), options);
}

/// The options `cluster_reader` and `backend` that give an Accelerator or a Fabric the ranks of `communicator`. Set
/// both.
/// Collective: every rank of `communicator` creates the object; the first call of the reader communicates with all
/// others.
/// Throws: ConfigError (MU059) for another backend than "mpi".
inline ClusterReader mpi_ranks(MPI_Comm communicator) { return ranks_over_mpi(MPI_Comm_c2f(communicator)); }
inline std::string mpi_backend(MPI_Comm communicator, const std::string& backend = "mpi") {
  return backend_over_mpi(MPI_Comm_c2f(communicator), backend);
}

}  // namespace muster::comm
