#pragma once

#include "cluster/secret.h"
#include "comm/collectives.h"
#include "comm/mpi/library.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// The settings of a group over MPI.
struct MpiSetup {
  std::optional<int> communicator{};  ///< the communicator, by its Fortran handle; nullopt: MPI_COMM_WORLD
  std::chrono::milliseconds connect_timeout{};
  std::chrono::milliseconds timeout{};  ///< timeout of operations
  cluster::Secret secret{};             ///< the secret with which ranks authenticate; none: MPI's ranks are trusted
};

/// Parses the name of a backend: "mpi", alone or over a communicator of the program (backend_over_mpi()). nullopt for
/// any other backend.
std::optional<MpiSetup> mpi_setup_of(const std::string& backend);

struct MpiLink {
  std::unique_ptr<Collectives> collectives;
  bool in_callers_thread = false;  ///< whether only the thread that initialized MPI may call it
  std::string note;                ///< what the user should know about the link; usually empty
};

/// Connects a group over MPI. Collective: all ranks of the communicator.
/// Throws: ConfigError (MU567) if libmuster_mpi.so cannot be opened, (MU568) if it was built with another MPI, (MU569)
/// if this process has another rank in the communicator, or it has another size; CommError (MU557) if MPI cannot be
/// used, (MU058) if ranks cannot be reached, (MU067) for a peer without the secret.
MpiLink connect_by_mpi(const MpiSetup& setup, const std::string& name, int rank, int size);

/// Makes a transport that sends frames and blocks as MPI messages between all ranks of the communicator.
/// Why: docs/decisions/0147-mpi-is-a-transport.md.
/// Collective: these ranks. Throws: CommError (MU557) if MPI cannot be used, (MU058) if ranks cannot be reached.
std::unique_ptr<Transport> make_mpi_transport(const std::shared_ptr<mpi::DuplicatedComm>& comm, const std::string& name,
                                              std::chrono::milliseconds connect_timeout);

}  // namespace muster::comm
