#pragma once

#include "sliced_state.h"

#include "muster/runtime/model.h"
#include "muster/tree/state.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::runtime {

/// The parameters and buffers by name; what is cut over ranks goes to `slices`, under names that begin with `path`.
/// On ranks other than 0 only the latter counts.
State save_weights_state(const PreparedModel& model, const std::string& path, std::vector<Slice>& slices);

/// Checks that named tensors fit the model and reads what has to be read, but changes nothing; the function that comes back copies
/// them in.
/// Throws: CheckpointError (MU240) with all that does not fit; names that only one side has are passed over unless `strict`.
std::function<void()> prepare_weights(const PreparedModel& model, const State& weights, bool strict, const TensorReader& reader);

/// Pairs of a tensor of the module and a whole value for it, of the same shape; the function that comes back copies in what this rank
/// holds of them, converted to its dtype.
std::function<void()> prepare_values(const PreparedModel& model, const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs);

/// What this rank holds of the models' parameters that are cut.
PartMap parts_of(const std::vector<std::shared_ptr<PreparedModel>>& models);

}  // namespace muster::runtime
