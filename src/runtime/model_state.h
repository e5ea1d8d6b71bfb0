#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/checkpoint/options.h"
#include "muster/tree/state.h"
#include "runtime/prepared_model.h"
#include "sharded_tensors.h"

namespace muster::runtime {

class RuntimeState;

/// The parameters and buffers by name. Sharded tensors go to `shards`, under names that begin with `path`. On ranks
/// other than 0 only `shards` is meaningful.
State save_weights_state(const PreparedModel& model, const std::string& path, std::vector<TensorShard>& shards);

/// Checks that named tensors fit the model and reads the values it needs, without changing the model; the returned
/// function copies them in.
/// Throws: CheckpointError (MU240) with all that does not fit; names that only the model or only `weights` has are
/// ignored unless `strict`.
std::function<void()> prepare_weights(const PreparedModel& model, const State& weights, bool strict,
                                      const TensorReader& reader);

/// Takes pairs of a tensor of the module and its full value, of the same shape. The returned function copies in
/// this rank's shard of the values, converted to the tensor's dtype.
std::function<void()> prepare_values(const PreparedModel& model,
                                     const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs);

/// Loads bare weights into a module, prepared or not: see Runtime::load_model(). Collective.
IncompatibleKeys load_weights(RuntimeState& state, const std::shared_ptr<torch::nn::Module>& module,
                              const std::filesystem::path& path, const LoadStateDictOptions& options);

/// This rank's shards of the models' sharded parameters.
ShardMap shards_of(const std::vector<std::shared_ptr<PreparedModel>>& models);

}  // namespace muster::runtime
