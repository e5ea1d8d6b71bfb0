#pragma once

#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/operation.h"

namespace muster::comm {

/// Whether a c10d::Backend has a call for operations of this kind. It has for all kinds whose tensors have one shape on
/// every rank.
bool has_backend_call(OperationKind kind);

/// Starts the operation by the backend's call. A mean is started as a sum, since not every backend has it. Other memory
/// that the backend works on is put into `kept`, which must live until the work is done.
/// Requires: has_backend_call().
c10::intrusive_ptr<c10d::Work> call_backend(c10d::Backend& backend, const Operation& operation,
                                            std::vector<at::Tensor>& kept);

/// Aborts the backend. A backend that cannot abort ends its waits by its own timeout.
void abort_backend(c10d::Backend& backend) noexcept;

/// Divides the sum that a mean was started as by `size`, if this rank has the result.
void finish_mean(const Operation& operation, int rank, int size);

}  // namespace muster::comm
