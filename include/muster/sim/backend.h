#pragma once

#include <chrono>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace muster::sim {

struct BackendOptions {
  /// As NCCL's: operations on which ranks disagree, and those for which a rank is missing, stand still until abort(),
  /// which ends this rank's own and leaves their results unwritten. Otherwise both are errors.
  bool hangs = false;
  std::vector<c10::ScalarType> refused = {};                    ///< dtypes that it does not take
  std::chrono::milliseconds timeout = std::chrono::minutes(1);  ///< of meeting the other ranks
};

/// Collectives among ranks of one host, threads or processes, each with a device of its own. As NCCL's they are queued:
/// they run on a stream of the communicator, after what the caller's current stream holds, and Work::wait() lets the
/// current stream wait. The host waits only where a time-out is given, and in a barrier.
/// Ranks that disagree (MU554) and a rank that has ended or left (MU555) are errors where the host waits next. Sums are
/// made in the order of ranks, those of half-precision numbers in float.
/// Collective: every rank of `store`, which no other group uses. Requires: install().
c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               const BackendOptions& options = {});

}  // namespace muster::sim
