#pragma once  // for other rooms

#include <functional>
#include <memory>
#include <vector>

#include "muster/comm/communicator.h"
#include "muster/parallel/managed_model.h"
#include "muster/parallel/options.h"

namespace muster::parallel {

/// Runs `f`, a loop over batches whose number may differ between ranks. A rank whose `f` has returned takes part in
/// what the others still communicate for these models, with zero gradients, until `f` has returned on all ranks. Then
/// every rank gets the parameters and buffers of the last rank that had a batch. `then` is called on all ranks with
/// that rank, for everything else that has to follow the parameters (optimizer states). It is not called if all ranks
/// had equally many batches. Only the communication of the models themselves is matched: call no other collective in
/// `f`. Works on every backend.
/// Throws: UsageError (MU117) for a model that cannot wait for others; (MU118), on all ranks, if ranks run different
/// models at the same time, or were given different numbers of them; (MU119) if another rank's `f` threw; CommError
/// (MU050), on all ranks, if `f` calls another collective after a rank has left; and what `f` throws.
/// Collective: every rank of the group, with the same models.
void join_uneven_inputs(const comm::Communicator& group, const std::vector<std::shared_ptr<ManagedModel>>& models,
                        const std::function<void()>& f, const JoinOptions& options = {},
                        const std::function<void(int last_rank)>& then = nullptr);

}  // namespace muster::parallel
