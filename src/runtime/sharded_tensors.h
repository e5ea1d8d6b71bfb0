#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "muster/checkpoint/checkpoint.h"
#include "muster/parallel/capabilities.h"
#include "muster/shard/tensor_shard.h"
#include "muster/tree/state.h"

/// Sharded tensors in saved states. A state has {"sliced": name, "order": dims} in place of such a tensor. `name` is
/// the name of the full tensor among the sharded tensors of a checkpoint, where its dimensions are in the memory order
/// of the parameter.
namespace muster::runtime {

/// This rank's shard of each sharded parameter, by TensorImpl: the identity of a tensor.
using ShardMap = std::unordered_map<const c10::TensorImpl*, parallel::ParameterShard>;

/// Adds `values`, laid out like the shard, unless another rank adds the same elements. Returns the entry that replaces
/// the tensor in a state.
State add_shard(std::string name, const parallel::ParameterShard& shard, const at::Tensor& values,
                std::vector<TensorShard>& shards);

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
  at::Tensor shard(const State& saved, const parallel::ParameterShard& shard) const;

 private:
  const Checkpoint* checkpoint_;
};

/// As shard::select(), padded with zeros.
at::Tensor padded_shard(const at::Tensor& whole, const parallel::ParameterShard& shard);

/// The optimizer's state, with the entries of add_shard() in place of its flat shards. `path`: prefix of the shards'
/// names.
State shard_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const ShardMap& held,
                            const std::string& path, std::vector<TensorShard>& shards);
/// The inverse of shard_optimizer_state(): the state with tensors in the form that this rank's optimizer has.
State joined_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const ShardMap& held,
                             const TensorReader& reader);

}  // namespace muster::runtime
