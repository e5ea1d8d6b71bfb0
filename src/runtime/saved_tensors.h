#pragma once

#include <unordered_map>

#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/options.h"
#include "muster/parallel/capabilities.h"
#include "muster/shard/tensor_shard.h"
#include "muster/tree/state.h"
#include "runtime/prepared_model.h"

/// The tensors of models and optimizers in saved states. A state has {"sliced": name, "order": dims} in place of a
/// sharded tensor. `name` is the name of the full tensor among the sharded tensors of a checkpoint, where its
/// dimensions are in the memory order of the parameter.
namespace muster::runtime {

/// This rank's shard of each sharded parameter, by TensorImpl: the identity of a tensor.
using ShardMap = std::unordered_map<const c10::TensorImpl*, TensorShard>;

/// Adds `values`, laid out like the shard, unless another rank adds the same elements. Returns the entry that replaces
/// the tensor in a state.
State add_shard(std::string name, const TensorShard& shard, const at::Tensor& values, std::vector<TensorShard>& shards);

/// Reads a tensor from a state, sharded or whole.
class TensorReader {
 public:
  /// `checkpoint`: borrowed; nullptr if no tensor can be sharded.
  explicit TensorReader(const Checkpoint* checkpoint) : checkpoint_(checkpoint) {}

  // Throws: CheckpointError (MU208, MU209, MU215) if it is neither.
  std::vector<int64_t> sizes(const State& saved) const;
  at::ScalarType dtype(const State& saved) const;
  at::Tensor whole(const State& saved) const;
  /// The elements of this shard, 1-D, on its device or the CPU. If the saved tensor is sharded and has the parameter's
  /// memory order, only the bytes of the shard are read.
  at::Tensor shard(const State& saved, const TensorShard& shard) const;

 private:
  const Checkpoint* checkpoint_;
};

/// As shard::select(), padded with zeros.
at::Tensor padded_shard(const at::Tensor& whole, const TensorShard& shard);

/// The optimizer's state, with the entries of add_shard() in place of its flat shards. `path`: prefix of the shards'
/// names.
State shard_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const ShardMap& held,
                            const std::string& path, std::vector<TensorShard>& shards);
/// The inverse of shard_optimizer_state(): the state with tensors in the form that this rank's optimizer has.
State joined_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const ShardMap& held,
                             const TensorReader& reader);

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
