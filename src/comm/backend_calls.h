#pragma once

#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/operation.h"

namespace muster::comm {

/// Whether a c10d::Backend has a call for operations of this kind: all whose tensors have the same shape on every rank.
bool has_backend_call(OperationKind kind);

/// Starts the operation by the backend's call. A mean is started as a sum, since not every backend has it. What the
/// backend works on beside the operation's tensors is put into `kept`, which must live until the work is done.
/// Requires: has_backend_call().
c10::intrusive_ptr<c10d::Work> call_backend(c10d::Backend& backend, const Operation& operation,
                                            std::vector<at::Tensor>& kept);

/// A backend that cannot abort ends its waits by its own time-out.
void abort_backend(c10d::Backend& backend) noexcept;

/// Divides by `size` what a mean has left a sum on this rank.
void finish_mean(const Operation& operation, int rank, int size);

}  // namespace muster::comm
