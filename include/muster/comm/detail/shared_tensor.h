#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// A 1-D tensor of zeros, for all_reduce of it or of parts of it. Where the ranks of the group share memory, it is in
/// memory that all of them read, so that nothing is copied before it is reduced; its storage cannot be resized, and the
/// memory stays for as long as a tensor uses it. Elsewhere, and where a rank has no such memory left, it is an ordinary
/// tensor on every rank. Requires: the same arguments on every rank. Throws: CommError. Collective.
at::Tensor shared_zeros(const Communicator& group, int64_t elements, const at::TensorOptions& options);

}  // namespace muster::comm
