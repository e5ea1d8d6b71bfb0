#pragma once  // for other rooms

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "comm/peer_access.h"
#include "muster/comm/communicator.h"

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

/// One tensor that all ranks of a group have in common, of which each rank writes one part.
struct SharedTensor {
  at::Tensor whole = {};  ///< the parts of all ranks, in rank order; where ranks are processes, a write there faults
  at::Tensor own = {};    ///< this rank's part, for writing
};
/// The parts of a SharedTensor of this group have to be multiples of this many bytes. 0: its ranks are not all on one
/// host, or share no memory.
std::size_t part_alignment(const Communicator& group);
/// Zeros, `elements` for each rank, in memory as of try_shared_zeros(); undefined tensors where that is. Nothing keeps
/// a rank from reading what another one is writing: barriers must. Requires: a multiple of part_alignment(), if it is
/// not 0. Throws: CommError. Collective.
SharedTensor try_shared_tensor(const Communicator& group, int64_t elements, const at::TensorOptions& options);

}  // namespace muster::comm
