#pragma once

#include <functional>
#include <vector>

#include "job_state.h"
#include "muster/shard/tensor_shard.h"
#include "muster/tree/state.h"
#include "sharded_tensors.h"

/// The gradients that wait for a step, in the state of a job.
namespace muster::runtime {

/// By optimizer, each a map from a parameter's number to its gradient.
struct WaitingGradients {
  State::List whole;    ///< what this rank has of full gradients
  State::List reduced;  ///< of sharded models, the entries of add_shard() for gradients that were reduced
};

/// Those that no step has used. Reduced ones go to `shards`.
WaitingGradients waiting_gradients(const StatefulObjects& contents, std::vector<TensorShard>& shards);

/// Saved gradients of one optimizer, as above; nullptr where there are none.
struct SavedGradients {
  const State* whole = nullptr;
  const State* reduced = nullptr;
  bool whole_is_reduced = false;  ///< every rank had the same, and the next step may use it as it is
};

/// Reads what has to be read; the returned function puts the gradients in the place of those that there are.
/// `saved`: by optimizer.
std::function<void()> prepare_gradients(const StatefulObjects& contents, const std::vector<SavedGradients>& saved,
                                        const TensorReader& reader);

}  // namespace muster::runtime
