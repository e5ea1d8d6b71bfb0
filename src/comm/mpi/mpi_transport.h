#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/mpi/world.h"
#include "comm/transport.h"
#include "muster/cluster/detail/secret.h"

namespace muster::comm {

/// The settings of a transport over MPI.
struct MpiSetup {
  std::optional<int> communicator;  ///< by its handle in Fortran; none: MPI_COMM_WORLD
  std::chrono::milliseconds connect_timeout{};
  std::chrono::milliseconds timeout{};  ///< of operations
  cluster::Secret secret;               ///< by which ranks authenticate; none: MPI's ranks are the job's
};

/// The communicator that the name of a backend says: "mpi", or "mpi:HANDLE". Empty if it is another backend.
std::optional<MpiSetup> mpi_setup_of(const std::string& backend);

struct MpiLink {
  std::unique_ptr<Transport> transport;
  bool in_callers_thread = false;  ///< MPI may only be called from the thread that initialised it
  std::string note;                ///< what the user should know of it; usually empty
};

/// Frames and blocks as messages of MPI. Collective: all ranks of the communicator.
/// Throws: ConfigError (MU567) if libmuster_mpi.so cannot be opened, (MU568) if it was built with another MPI, (MU569)
/// if this process has another rank in the communicator, or it has another size; CommError (MU557) if MPI cannot be
/// used, (MU058) if ranks cannot be reached, (MU067) for a peer without the secret.
MpiLink make_mpi_transport(const MpiSetup& setup, const std::string& name, int rank, int size);

/// The same over ranks that are known already, for all of them.
std::unique_ptr<Transport> make_mpi_transport(const std::shared_ptr<mpi::World>& world, const std::string& name,
                                              std::chrono::milliseconds connect_timeout);

}  // namespace muster::comm
