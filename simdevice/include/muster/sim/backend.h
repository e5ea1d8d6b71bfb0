#pragma once

#include <chrono>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace muster::sim {

struct BackendOptions {
  /// Imitate NCCL: operations on which ranks disagree, or for which a rank is missing, hang until abort(), which ends
  /// this rank's operations without writing their results. Off: both cases are errors.
  bool hangs = false;
  std::vector<c10::ScalarType> refused = {};                    ///< dtypes that the backend does not support
  std::chrono::milliseconds timeout = std::chrono::minutes(1);  ///< longest wait for the other ranks to arrive
};

/// Creates a backend for collectives among ranks of one host, threads or processes, each with its own device.
/// Operations are queued, as with NCCL: they run on a stream of the communicator, after the work in the caller's
/// current stream, and Work::wait() makes the current stream wait. The host waits only if a time-out is given, and in a
/// barrier. If ranks disagree (MU554) or a rank has ended or left (MU555), the host's next wait throws. Sums are
/// computed in rank order, for half-precision dtypes in float.
/// Collective: every rank of `store`, which no other group uses. Requires: install().
c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               const BackendOptions& options = {});

}  // namespace muster::sim
