#pragma once

#include <string>

#include <mpi.h>

#include "muster/cluster/cluster.h"
#include "muster/comm/communicator.h"
#include "muster/comm/detail/mpi_ranks.h"
#include "muster/comm/options.h"

/// Ranks of MPI that the program has already: for programs that call MPI themselves, and so are compiled with its
/// header. All others take the backend "mpi", which needs none, and get the ranks of MPI_COMM_WORLD.
/// Requires: MPI is initialised, with MPI_THREAD_MULTIPLE if operations are to run beside the program; the MPI is the
/// one that Muster was built with (MU568). Communicators are duplicated, so no message of the program matches one of
/// Muster's; they may be freed once the groups are formed.
namespace muster::comm {

/// The ranks of `communicator` as a group, with the options of connect(): the backend is "mpi" unless they name
/// "mpi_collectives".
/// Collective: every rank of `communicator`. Throws: as comm::connect() with the backend "mpi"; ConfigError (MU059)
/// for another one.
inline Communicator connect(MPI_Comm communicator, const GroupOptions& options = {}) {
  return connect_over_mpi(MPI_Comm_c2f(communicator), options);
}

/// For the options `cluster_reader` and `backend` of an Accelerator or a Fabric, which then has the ranks of
/// `communicator`. Give both.
/// Collective: every rank of `communicator` makes the object, and the reader asks all others when it is first called.
/// Throws: ConfigError (MU059) for another backend than "mpi" and "mpi_collectives".
inline ClusterReader mpi_ranks(MPI_Comm communicator) { return ranks_over_mpi(MPI_Comm_c2f(communicator)); }
inline std::string mpi_backend(MPI_Comm communicator, const std::string& backend = "mpi") {
  return backend_over_mpi(MPI_Comm_c2f(communicator), backend);
}

}  // namespace muster::comm
