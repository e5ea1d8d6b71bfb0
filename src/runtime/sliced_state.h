#pragma once

#include "muster/checkpoint/checkpoint.h"
#include "muster/parallel/managed_model.h"
#include "muster/tree/state.h"

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

/// Tensors that are cut over ranks, in states that are saved. In the place of such a tensor a state has
/// {"sliced": name, "order": dims}: the name of the whole among a checkpoint's sliced tensors, which has the dimensions of the
/// parameter in the order in which it lies in memory.
namespace muster::runtime {

/// What this rank holds of each parameter that is cut.
using PartMap = std::unordered_map<const c10::TensorImpl*, parallel::ParameterPart>;

/// Adds `values`, which lie as the part does, unless another rank adds the same, and returns what stands for them.
State add_slice(std::string name, const parallel::ParameterPart& part, const at::Tensor& values, std::vector<Slice>& slices);

/// Reads what stands for a tensor, cut or whole.
class TensorReader {
 public:
  /// `checkpoint`: borrowed; nullptr where nothing can be cut.
  explicit TensorReader(const Checkpoint* checkpoint) : checkpoint_(checkpoint) {}

  // Throws: CheckpointError (MU208, MU209, MU215) if it is none of both.
  std::vector<int64_t> sizes(const State& saved) const;
  at::ScalarType dtype(const State& saved) const;
  at::Tensor whole(const State& saved) const;
  /// What belongs to this part, 1-D; of a cut tensor that lies as the parameter does, only these bytes are read.
  at::Tensor part(const State& saved, const parallel::ParameterPart& part) const;

 private:
  const Checkpoint* checkpoint_;
};

/// What belongs to this part of a whole tensor of the parameter's shape: 1-D, in the parameter's memory order.
at::Tensor part_of(const at::Tensor& whole, const parallel::ParameterPart& part);
/// The same, padded with zeros.
at::Tensor padded_part(const at::Tensor& whole, const parallel::ParameterPart& part);

/// The optimizer's state with its flat parts replaced by what stands for them. `path`: what slices' names begin with.
State cut_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const PartMap& parts, const std::string& path,
                          std::vector<Slice>& slices);
/// The opposite: tensors as this rank's optimizer has them.
State joined_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const PartMap& parts, const TensorReader& reader);

}  // namespace muster::runtime
