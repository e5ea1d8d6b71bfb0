#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/headeronly/version.h>

#include "muster/cluster/cluster.h"
#include "muster/comm/communicator.h"
#include "muster/comm/options.h"

#define MUSTER_BACKEND_OBJECT_BUILT_WITH "Muster 0.1, LibTorch " TORCH_VERSION

namespace muster::comm {

/// Makes the backend of one group. `store` is the part of the rendezvous store that belongs to the group.
/// Collective: every rank of the group.
using BackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const GroupOptions& options)>;

/// Makes the backend of a part of the group of `parent`, for the ranks `ranks` of that group, or returns null on the
/// other ranks. Collective: every rank of `parent`.
using BackendSplit = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Backend>& parent, const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks, const GroupOptions& options)>;

/// A plugged-in backend: NCCL, MPI, shared memory.
struct BackendEntry {
  /// The device type of its tensors. With another one than the CPU, tensors in host memory, bytes and objects go over
  /// what "auto" chooses; so do operations whose shapes differ between ranks.
  c10::DeviceType device = c10::DeviceType::CPU;
  BackendFactory make;
  /// Null: parts of a group are made by `make`, by the ranks of the part alone.
  BackendSplit split = {};
  /// Dtypes that a backend of a device lacks. They travel all the same: as bytes; in reductions int16 as int32, and
  /// bool as uint8, of which a sum is the greatest.
  std::vector<c10::ScalarType> without = {};
  /// What plan() says of it.
  std::function<std::string()> note = {};
  std::string name = "of the program";  ///< in which ranks must agree; that of an object is the option's
};
using Backends = std::map<std::string, BackendEntry>;

/// What a shared object libmuster_NAME.so defines for `device_backend = "NAME"`:
///   extern "C" const muster::comm::BackendObject muster_backend_object{.entry = {...}};
struct BackendObject {
  const char* built_with = MUSTER_BACKEND_OBJECT_BUILT_WITH;  ///< opened only by programs with the same versions
  BackendEntry entry = {};
};

/// Performs the rendezvous with the job's other ranks and forms the group "world". A world of one opens neither socket
/// nor file.
/// Backends: "gloo"; "shm" (shared memory); "hierarchical" (the same on each of several hosts, and gloo between them);
/// "auto" (the first of shm, hierarchical and gloo that all ranks can); "mpi" (messages of MPI, whose ranks have to be
/// the job's; mpi.h takes other communicators than MPI_COMM_WORLD) and "mpi_collectives"; "fake" (this process acts as
/// its rank of the job, alone); a transport of the program's own (transport.h); and those named in `more`, which alone
/// have to find by themselves that ranks disagree. Tensors of a device go over GroupOptions::device_backend, if there
/// is one, under every backend but "fake". If the environment has the job's secret (cluster::read_secret), only ranks
/// that have it are admitted: what the store says proves it and, over a transport, so does each peer's handshake.
/// Where ranks have a device_backend, a thread of each rank watches its operations: one that takes longer than the
/// time-out, or an error that the backend reports, ends all groups of all ranks that have it for the same cause.
/// Collective: every rank of the job, equally often.
/// Throws: ConfigError (MU059) for an unknown backend, (MU577), (MU560) for a device_backend without a factory or not
/// for a device, (MU558) if ranks have different ones; CommError (MU057) that names the ranks that did not come within
/// the rendezvous time-out, (MU400) if the backend is "shm" or "hierarchical" and ranks cannot share memory, (MU058) if
/// the store or ranks cannot be reached, (MU067) for a peer without the job's secret, (MU069) for another user's
/// rendezvous file, on all ranks (MU575), or the id of what a factory threw on one, (MU560) if it made none;
/// ConfigError (MU068) for an invalid secret; LaunchError (MU069) if no folder can be had; with "mpi", ConfigError
/// (MU567), (MU568) for its library, (MU569) if MPI's ranks are others, and CommError (MU557) if MPI cannot be used.
Communicator connect(const ClusterEnvironment& cluster, const GroupOptions& options = {}, const Backends& more = {});

/// Rank `rank` of a group of `size` without other processes: results are as if all ranks had the same values. An
/// operation that needs what only another rank could know (the shapes it scatters) throws CommError; recv leaves its
/// tensor unchanged.
Communicator make_fake(int rank, int size);

}  // namespace muster::comm
