#pragma once

#include "muster/runtime/model.h"
#include "muster/tree/state.h"

#include <functional>
#include <string>

namespace muster::runtime {

/// {"class": ..., "weights": {name: tensor}}; on ranks other than 0 without weights. Collective: where parameters are sharded.
State save_weights_state(const PreparedModel& model);

/// Checks that named tensors fit the model and changes nothing; the function that comes back copies them in.
/// Throws: CheckpointError (MU240) with all that does not fit; names that only one side has are passed over unless `strict`.
std::function<void()> prepare_weights(const PreparedModel& model, const State& weights, bool strict);

}  // namespace muster::runtime
