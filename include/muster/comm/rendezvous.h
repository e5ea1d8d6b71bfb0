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

/// Creates the backend of one group. `store` is the group's part of the rendezvous store.
/// Collective: every rank of the group.
using BackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const GroupOptions& options)>;

/// Creates the backend of a subgroup of `parent`'s group that consists of the ranks `ranks`. Returns null on all other
/// ranks. Collective: every rank of `parent`.
using BackendSplit = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Backend>& parent, const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks, const GroupOptions& options)>;

/// A custom c10d::Backend, from the program or from a shared object, such as NCCL. For a network that only moves bytes,
/// see transport.h instead. See docs/decisions/0171-two-doors-for-communication.md.
struct BackendEntry {
  /// The device type of its tensors. The entry of a device is given as GroupOptions::device_backend; tensors in host
  /// memory, bytes and objects go over GroupOptions::backend, and so do operations whose shapes differ between ranks.
  /// An entry for the CPU is given to connect() under a name.
  c10::DeviceType device = c10::DeviceType::CPU;
  BackendFactory make;
  /// Creates the backend of a subgroup. Null: the ranks of the subgroup call `make`.
  BackendSplit split = {};
  /// Dtypes that a device backend does not support. Their tensors travel as bytes; reductions convert int16 to int32
  /// and bool to uint8, where a sum is computed as the maximum.
  std::vector<c10::ScalarType> without = {};
  /// Returns the text that plan() shows about the backend.
  std::function<std::string()> note = {};
  std::string name = "of the program";  ///< must agree between ranks; for a shared library, the name in the option
};
using Backends = std::map<std::string, BackendEntry>;

/// The object that a shared library libmuster_NAME.so defines for `device_backend = "NAME"`:
///   extern "C" const muster::comm::BackendObject muster_backend_object{.entry = {...}};
struct BackendObject {
  const char* built_with = MUSTER_BACKEND_OBJECT_BUILT_WITH;  ///< opened only by programs with equal versions
  BackendEntry entry = {};
};

/// Performs the rendezvous with the job's other ranks and forms the group "world". A world of one opens no socket and
/// no file.
/// Backends: "gloo"; "shm" (shared memory); "hierarchical" (shared memory on each host, and gloo between hosts); "auto"
/// (the first of shm, hierarchical and gloo that all ranks can use); "mpi" (messages of MPI, whose ranks must be the
/// job's; mpi.h takes other communicators than MPI_COMM_WORLD); "fake" (this process acts alone,
/// as its rank of the job); a custom transport (transport.h); and the backends for tensors in host memory that are
/// named in `more`. Only the latter must detect themselves that ranks disagree. Tensors of a device go over
/// GroupOptions::device_backend, if it is set, under every backend but "fake". If the environment has the job's secret
/// (cluster::read_secret), only ranks that have it are admitted: the data in the store proves it and, over a transport,
/// so does each peer's handshake. If ranks have a device_backend, a thread of each rank watches its operations: one
/// that takes longer than the time-out, or an error that the backend reports, ends all groups of all ranks that have
/// it, with that cause. See docs/decisions/0151-a-backend-of-a-device-is-an-object.md.
/// Collective: every rank of the job, equally often.
/// Throws: ConfigError (MU059) for an unknown backend, or one in `more` that is for a device, (MU577), (MU560) for a
/// device_backend without a factory or not for a device, (MU558) if ranks have different ones;
/// CommError (MU057), naming the ranks that did not arrive within the rendezvous time-out, (MU400) if the backend is
/// "shm" or "hierarchical" and ranks cannot share memory, (MU058) if the store or ranks cannot be reached, (MU067) for
/// a peer without the job's secret, (MU069) for another user's rendezvous file, on all ranks (MU575), or the id of what
/// a factory threw on one rank, (MU560) if it returned no backend; ConfigError (MU068) for an invalid secret;
/// LaunchError (MU069) if no folder can be created; with "mpi", ConfigError (MU567), (MU568) for its library, (MU569)
/// if MPI's ranks are others, and CommError (MU557) if MPI cannot be used.
Communicator connect(const ClusterEnvironment& cluster, const GroupOptions& options = {}, const Backends& more = {});

/// Rank `rank` of a group of `size` ranks without other processes: results are as if all ranks had equal values. An
/// operation that needs data which only another rank has (such as the shapes that it scatters) throws CommError; recv
/// leaves its tensor unchanged.
Communicator make_fake(int rank, int size);

}  // namespace muster::comm
