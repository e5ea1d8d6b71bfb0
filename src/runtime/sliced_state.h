#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "muster/checkpoint/checkpoint.h"
#include "muster/parallel/managed_model.h"
#include "muster/tree/state.h"

/// Sharded tensors in saved states. In the place of such a tensor a state has {"sliced": name, "order": dims}. `name`
/// is that of the whole tensor among the sliced tensors of a checkpoint, where its dimensions are in the memory order
/// of the parameter.
namespace muster::runtime {

/// The part that this rank holds of each sharded parameter.
using PartMap = std::unordered_map<const c10::TensorImpl*, parallel::ParameterPart>;

/// Adds `values`, which are laid out as the part is, unless another rank adds the same. Returns the entry that replaces
/// the tensor in a state.
State add_slice(std::string name, const parallel::ParameterPart& part, const at::Tensor& values,
                std::vector<Slice>& slices);

/// Reads a tensor from a state, sharded or whole.
class TensorReader {
 public:
  /// `checkpoint`: borrowed; nullptr if no tensor can be sharded.
  explicit TensorReader(const Checkpoint* checkpoint) : checkpoint_(checkpoint) {}

  // Throws: CheckpointError (MU208, MU209, MU215) if it is neither.
  std::vector<int64_t> sizes(const State& saved) const;
  at::ScalarType dtype(const State& saved) const;
  at::Tensor whole(const State& saved) const;
  /// The elements of this part, 1-D. If the saved tensor is sharded and has the memory order of the parameter, only
  /// their bytes are read.
  at::Tensor part(const State& saved, const parallel::ParameterPart& part) const;

 private:
  const Checkpoint* checkpoint_;
};

/// The elements of this part in a whole tensor of the parameter's shape: 1-D, in the parameter's memory order.
at::Tensor part_of(const at::Tensor& whole, const parallel::ParameterPart& part);
/// As above, padded with zeros.
at::Tensor padded_part(const at::Tensor& whole, const parallel::ParameterPart& part);

/// The optimizer's state, with the entries of add_slice() in place of its flat parts. `path`: the beginning of the
/// slices' names.
State cut_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const PartMap& parts,
                          const std::string& path, std::vector<Slice>& slices);
/// The opposite: the state with tensors as this rank's optimizer has them.
State joined_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const PartMap& parts,
                             const TensorReader& reader);

}  // namespace muster::runtime
