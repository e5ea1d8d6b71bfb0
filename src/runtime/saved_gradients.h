#pragma once

#include <functional>
#include <vector>

#include "job_state.h"
#include "muster/shard/tensor_shard.h"
#include "muster/tree/state.h"
#include "sharded_tensors.h"

/// The part of a job's state that holds gradients waiting for a step.
namespace muster::runtime {

/// Gradients by optimizer, each a map from a parameter's number to its gradient.
struct WaitingGradients {
  State::List whole;    ///< this rank's full gradients
  State::List reduced;  ///< entries of add_shard() for the reduced gradients of sharded models
};

/// The gradients that no step has used. Reduced ones go to `shards`.
WaitingGradients waiting_gradients(const StatefulObjects& contents, std::vector<TensorShard>& shards);

/// The saved gradients of one optimizer, in the form of WaitingGradients; nullptr where there are none.
struct SavedGradients {
  const State* whole = nullptr;
  const State* reduced = nullptr;
  bool whole_is_reduced = false;  ///< gradients were equal on every rank, so the next step may use them unchanged
};

/// Reads the values it needs; the returned function replaces the current gradients by the saved ones.
/// `saved`: by optimizer.
std::function<void()> prepare_gradients(const StatefulObjects& contents, const std::vector<SavedGradients>& saved,
                                        const TensorReader& reader);

}  // namespace muster::runtime
