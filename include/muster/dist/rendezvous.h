#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <map>
#include <string>

#include "muster/cluster/cluster.h"
#include "muster/dist/communicator.h"
#include "muster/dist/options.h"

namespace muster::dist {

/// Makes the backend of one group. `store` is the group's own part of the rendezvous store.
/// Collective: every rank of the group.
using BackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                                       int size, const GroupOptions& options)>;

/// A backend of somebody else's: NCCL, MPI, shared memory.
struct BackendEntry {
  c10::DeviceType device = c10::DeviceType::CPU;  ///< where its tensors are
  BackendFactory make;
};
using Backends = std::map<std::string, BackendEntry>;

/// Meets the other ranks of the job and forms the group "world". A world of one opens no socket and no file.
/// Backends: "gloo"; "fake" (this process acts as its rank of the job, alone); and those named in `more`, through which
/// operations run unchecked as far as the backend itself lets ranks disagree. Where the environment has the job's secret
/// (cluster::read_secret), only ranks that have it are let in: what the store says and, under gloo, each peer's first words prove it.
/// Collective: every rank of the job, as often as any of them.
/// Throws: ConfigError (MU059) for an unknown backend; CommError (MU057) that names the ranks that did not come within the
/// rendezvous time-out, (MU058) if the store or the ranks cannot be reached, (MU067) for who has not the job's secret, (MU069) for
/// a file of another user's where ranks meet; ConfigError (MU068) for a secret that is none; LaunchError (MU069) if no folder can be had.
Communicator connect(const Cluster& cluster, const GroupOptions& options = {}, const Backends& more = {});

/// Rank `rank` of a group of `size` with nobody else: results are as if all ranks had the same values. What only another
/// rank could know (the shapes it scatters) is a CommError; receive leaves its tensor as it is.
Communicator make_fake(int rank, int size);

/// A group over a backend that exists already.
Communicator adopt(c10::intrusive_ptr<c10d::Backend> backend, const std::string& name,
                   c10::DeviceType device = c10::DeviceType::CPU, const GroupOptions& options = {});

}  // namespace muster::dist
