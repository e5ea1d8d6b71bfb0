#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "muster/comm/detail/peer_access.h"

namespace muster::comm {

/// A 1-D tensor of zeros in memory that all ranks of the group read: what is in it, or in a part of it, is reduced and
/// gathered without being copied before; where peers may write, all_reduce() puts the results into it directly. Its
/// storage cannot be resized, and the memory stays for as long as a tensor uses it. Undefined on every rank if the
/// ranks share no memory, or one of them has none left. Requires: the same arguments on every rank. Throws: CommError.
/// Collective.
at::Tensor try_shared_zeros(const Communicator& group, int64_t elements, const at::TensorOptions& options,
                            PeerAccess access = PeerAccess::read);
/// The same, or an ordinary tensor on every rank.
at::Tensor shared_zeros(const Communicator& group, int64_t elements, const at::TensorOptions& options,
                        PeerAccess access = PeerAccess::read);

}  // namespace muster::comm
