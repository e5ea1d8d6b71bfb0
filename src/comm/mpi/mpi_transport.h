#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cluster/secret.h"
#include "comm/collectives.h"
#include "comm/mpi/duplicated_comm.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// The settings of a group over MPI.
struct MpiSetup {
  std::optional<int> communicator;  ///< by its handle in Fortran; none: MPI_COMM_WORLD
  bool own_collectives = false;     ///< MPI's, where it has them
  std::chrono::milliseconds connect_timeout{};
  std::chrono::milliseconds timeout{};  ///< of operations
  cluster::Secret secret;               ///< by which ranks authenticate; none: MPI's ranks are the job's
};

/// What the name of a backend says: "mpi" or "mpi_collectives", by itself or over a communicator of the program
/// (backend_over_mpi()). Empty if it is another backend.
std::optional<MpiSetup> mpi_setup_of(const std::string& backend);

struct MpiLink {
  std::unique_ptr<Collectives> collectives;
  bool in_callers_thread = false;  ///< MPI may only be called from the thread that initialised it
  std::string note;                ///< what the user should know of it; usually empty
};

/// A group over MPI. Collective: all ranks of the communicator.
/// Throws: ConfigError (MU567) if libmuster_mpi.so cannot be opened, (MU568) if it was built with another MPI, (MU569)
/// if this process has another rank in the communicator, or it has another size; CommError (MU557) if MPI cannot be
/// used, (MU058) if ranks cannot be reached, (MU067) for a peer without the secret.
MpiLink connect_by_mpi(const MpiSetup& setup, const std::string& name, int rank, int size);

/// Frames and blocks as messages of MPI.
class TransportOverMpi : public Transport {
 public:
  virtual const std::shared_ptr<mpi::DuplicatedComm>& duplicated_comm() const noexcept = 0;
  /// Waits until `is_done`, for which all ranks are needed. Throws: as a transfer's wait().
  virtual void wait_for_all(const std::function<bool()>& is_done, TimePoint deadline) = 0;
};

/// One over all ranks of the communicator. Collective: they.
/// Throws: CommError (MU557), (MU058) as above.
std::unique_ptr<TransportOverMpi> make_mpi_transport(const std::shared_ptr<mpi::DuplicatedComm>& comm,
                                                     const std::string& name,
                                                     std::chrono::milliseconds connect_timeout);

}  // namespace muster::comm
