#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/optim/flat_parameters.h"
#include "optim/rule.h"

namespace muster::optim {

/// One parameter of the optimizer, and where its value, gradient and state lie.
struct ParameterEntry {
  at::Tensor parameter;
  /// The impl of `parameter`, which this entry keeps alive. Its grad() is read for each parameter in every step;
  /// Tensor::grad() would first ask autograd whether it is a leaf.
  c10::TensorImpl* impl = nullptr;
  size_t group = 0;
  FlatParameters* owner = nullptr;  ///< the flat parameters that hold it; nullptr if it is updated where it lies
  const LocalParameter* local = nullptr;
  bool whole = true;           ///< whether the memory that is updated is the parameter's own
  bool active = false;         ///< whether it has a gradient in the planned step
  const void* data = nullptr;  ///< address of the parameter when the step was planned
  int64_t step = 0;            ///< number of updates so far
  torch::optim::OptimizerParamState* state = nullptr;
  std::array<at::Tensor, kMaxStates> states;  ///< state memory, 1-D and padded
  std::array<at::Tensor, kMaxStates>
      state_views;            ///< the views of them that `state` holds; kept, so that no other is allocated there
  at::Tensor restrided_grad;  ///< this step's gradient in the parameter's layout, if it came in another layout

  /// The dtype that is updated; the parameter itself may be used in another one.
  at::ScalarType dtype() const { return local ? local->value.scalar_type() : parameter.scalar_type(); }
  const at::Tensor& gradient() const { return restrided_grad.defined() ? restrided_grad : impl->grad(); }
  /// Address of the parameter, also after its memory was freed.
  const void* address() const { return address_of(impl); }
  static const void* address_of(c10::TensorImpl* impl) {
    if (!impl->has_storage()) return nullptr;
    // Unchecked: the storage of a sharded parameter may have no memory, and then data_ptr() throws.
    const auto* base = impl->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
    if (!base) return nullptr;
    return static_cast<const char*>(base) + impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
  }
};

using StateMap = std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

inline torch::optim::OptimizerParamState* find_state(const StateMap& states, const ParameterEntry& entry) {
  const auto found = states.find(entry.impl);
  return found == states.end() ? nullptr : found->second.get();
}

/// Whether LibTorch's state object for this entry is the one we know, and shows our memory. (A new object may have the
/// address of an old one, so its address alone proves nothing.)
inline bool views_are_ours(UpdateRule rule, torch::optim::OptimizerParamState* found, const ParameterEntry& entry) {
  if (found != entry.state) return false;
  return !found || !entry.state_views[0].defined() || state_tensor(rule, *found, 0).is_same(entry.state_views[0]);
}

/// Gives every active entry its state in flat memory, either new or taken over from LibTorch's state object. Returns
/// false if the dtype of that state differs from the parameter's, since no fused kernel takes it.
bool attach_states(UpdateRule rule, torch::optim::Optimizer& inner, std::vector<ParameterEntry>& entries);

/// The calls that one step makes for one set of parameters with gradients. Built rarely, run in every step.
///
/// On a CPU each input of a call has a multiple of kFlatPadding elements. If a parameter is updated where it lies, the
/// last elements that do not fill a vector go through a small padded copy.
class UpdatePlan {
 public:
  /// Requires: attach_states() was called for these entries.
  UpdatePlan(UpdateRule rule, torch::optim::Optimizer& inner, const std::vector<ParameterEntry>& entries);

  /// Updates parameters and states. Requires: the entries' gradients are available.
  void run(UpdateRule rule, torch::optim::Optimizer& inner, const std::vector<ParameterEntry>& entries,
           const std::optional<at::Tensor>& found_inf);

 private:
  struct Link {  // an input whose gradient is wherever autograd put it
    size_t entry, call, input;
  };
  struct Tail {  // the end of a parameter, copied to padded memory and back
    size_t entry;
    at::Tensor value, gradient;
    int64_t begin, count;
  };
  struct CallInput {
    size_t entry;
    at::Tensor value, gradient;
    int64_t state_begin;
    bool linked;
  };

  std::vector<CallInput> inputs_of(const std::vector<ParameterEntry>& entries, const std::vector<size_t>& members);
  void add_call(StateSet states, const std::vector<ParameterEntry>& entries, const std::vector<size_t>& members);
  void copy_in(const std::vector<ParameterEntry>& entries);
  void copy_out(const std::vector<ParameterEntry>& entries);

  std::vector<UpdateCall> calls_;
  std::vector<Link> links_;
  std::vector<Tail> tails_;
  at::Tensor nothing_;  // target of the links between steps, so that they keep no gradient alive
};

}  // namespace muster::optim
