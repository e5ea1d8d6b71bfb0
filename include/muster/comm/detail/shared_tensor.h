#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// A 1-D tensor of zeros in memory that all ranks of the group read: what is in it, or in a part of it, is reduced and
/// gathered without being copied before. Its storage cannot be resized, and the memory stays for as long as a tensor
/// uses it. Undefined on every rank if the ranks share no memory, or one of them has none left.
/// Requires: the same arguments on every rank. Throws: CommError. Collective.
at::Tensor try_shared_zeros(const Communicator& group, int64_t elements, const at::TensorOptions& options);
/// The same, or an ordinary tensor on every rank.
at::Tensor shared_zeros(const Communicator& group, int64_t elements, const at::TensorOptions& options);

}  // namespace muster::comm
