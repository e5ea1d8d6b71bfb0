#pragma once  // for other rooms

#include <cstddef>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

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

  std::vector<UpdateCall> calls_;
  std::vector<Link> links_;
  std::vector<Tail> tails_;
  at::Tensor nothing_;  // target of the links between steps, so that they keep no gradient alive
};

/// Detects that other code updated the parameters after a backward.
/// Why: docs/decisions/0012-steps-are-seen-not-trapped.md.
class DirectStepWatch {
 public:
  /// `values`: also remember some values, since LibTorch's SGD does not change versions.
  void note(const std::vector<ParameterEntry>& entries, bool values);
  void clear() noexcept;
  /// Whether all parameters with gradients have changed since note().
  bool all_changed(const std::vector<ParameterEntry>& entries) const;
  /// Whether some of them have changed.
  bool any_changed(const std::vector<ParameterEntry>& entries) const;

 private:
  static constexpr size_t kSampleBytes = 64;
  struct Mark {
    size_t entry;
    uint32_t version;
  };
  struct Sample {
    size_t entry;
    size_t bytes;
    std::array<char, kSampleBytes> values;
  };
  static bool changed(const ParameterEntry& entry, const Mark& mark);
  static bool changed(const ParameterEntry& entry, const Sample& sample);
  std::vector<Mark> marks_;
  std::vector<Sample> samples_;
};

/// The step of a LibTorch optimizer by LibTorch's fused kernels, with the optimizer's own options and state objects.
///
/// SGD, Adam, AdamW, Adagrad and RMSprop (exactly these types, not classes derived from them) run fused: one call per
/// group and per contiguous range of memory, every element in the kernel's vectorized loop. Optimizers derived from
/// ElementwiseOptimizer run their update() in this way, too. For other optimizers, and for a step in which a gradient
/// is sparse or a dtype differs, the optimizer's own step() runs. Both paths share one state, so they may alternate.
///
/// Repeated tensors in the groups (LibTorch's parameters() lists a tied weight twice) are removed from them when this
/// object is made and when groups have changed; otherwise a step would change such a tensor twice.
///
/// Options are read from inner.param_groups() at each step, so schedulers and direct edits work. inner.state() shows
/// LibTorch's state classes; their tensors have the parameter's shape and strides and are stored in flat memory. State
/// that existed before this object was made, or that was loaded later, is kept. Parameters without gradient are skipped
/// and not counted. A step marks the parameters as modified in place, as LibTorch's own steps do.
///
/// Thread safety: one thread at a time.
/// Why: docs/decisions/0041-the-reducer-and-the-fused-step.md.
class FusedStep {
 public:
  /// Borrows both arguments. `flat_parameters` are searched in order; a parameter that none of them holds is updated in
  /// place.
  /// Requires: the optimizer and the flat parameters outlive this object.
  explicit FusedStep(torch::optim::Optimizer& inner, std::vector<FlatParameters*> flat_parameters = {});
  FusedStep(FusedStep&&) noexcept = default;
  FusedStep& operator=(FusedStep&&) noexcept = default;

  /// Adds the flat parameters of a model that is prepared after its optimizer.
  void add_flat_parameters(FlatParameters& flat_parameters);

  /// Makes one update. Returns the loss of the closure, or an undefined tensor.
  /// Throws: UsageError (MU133) under the conditions of refuse_direct_step(); UsageError (MU134) if the optimizer's own
  /// step() is needed for a parameter of which this rank holds only a part.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);

  /// Makes one update, or skips it if `found_inf` (float32, one element, on the device of the parameters) is 1: then
  /// only the count of steps changes, which undo_step_count() lowers again. Requires: takes_found_inf().
  void step_unless(const at::Tensor& found_inf);
  /// Whether a flag can skip the next step. It cannot if the step runs a custom update() or step(), or if momentum of
  /// SGD starts in it.
  bool takes_found_inf();
  /// Corrects the count of steps after the last step_unless() was skipped.
  void undo_step_count();

  /// Clears gradients: makes them undefined, or zeroes them in place. Throws: what refuse_direct_step() throws.
  void zero_grad(bool set_to_none = true);

  /// Records what refuse_direct_step() compares with. Call it at the end of each backward.
  void note_backward();

  /// Makes the next call accept parameters or inner.state() that were replaced on purpose, as by loading a checkpoint.
  /// Call it afterwards.
  void note_load();

  /// Throws: UsageError (MU133) if anyone but this object called inner.step() since the last call here. Detected by the
  /// step count in the state, by the versions of all parameters, or, for SGD on a CPU, by their values.
  void refuse_direct_step();

  /// Call these before and after a step of another known optimizer, which may change parameters of this one. Its
  /// changes do not count as steps of `inner`. before_another_step() throws what refuse_direct_step() throws.
  void before_another_step();
  void after_another_step();

  /// Number of repeated entries that were removed from the groups.
  int64_t repeated() const noexcept { return repeated_; }

  /// Throws: UsageError (MU134) if the optimizer needs full parameters and this rank holds only a part of some.
  void require_full_parameters() const;

  /// Whether steps go through a fused kernel or update().
  bool fused() const noexcept { return rule_ != UpdateRule::unfused; }
  /// "AdamW, fused", "Lion, by its update()" or "LBFGS, by its own step".
  std::string describe() const;

  torch::optim::Optimizer& inner() const noexcept { return *inner_; }

 private:
  /// As require_full_parameters(), where the optimizer's own step() is needed.
  void require_whole_parameters() const;
  bool entries_current() const;
  int64_t revision() const;
  void refresh_entries();
  void fill_entry(ParameterEntry& entry) const;
  void read_state(ParameterEntry& entry) const;
  torch::optim::OptimizerParamState* find_state(const ParameterEntry& entry) const;
  /// Whether LibTorch's state object for this entry is the one we know, and shows our memory. (A new object may have
  /// the address of an old one, so its address alone proves nothing.)
  bool views_are_ours(const ParameterEntry& entry) const;
  /// Whether fused kernels can make this step. Also finds which parameters have gradients, and drops the plan if it no
  /// longer fits.
  bool can_step_fused();
  bool can_step_fused(ParameterEntry& entry);
  bool align_gradient(ParameterEntry& entry) const;
  at::Tensor step_inner(const torch::optim::Optimizer::LossClosure& closure);
  bool step_fused(const std::optional<at::Tensor>& found_inf);
  void count_step();
  void reload_states();

  torch::optim::Optimizer* inner_;
  std::vector<FlatParameters*> flat_parameters_;
  UpdateRule rule_;
  std::vector<ParameterEntry> entries_;
  int64_t revision_ = 0;              // sum of the revisions of the flat parameters when the entries were filled
  std::vector<StateSet> state_sets_;  // per group, the states in the plan
  std::optional<UpdatePlan> plan_;
  DirectStepWatch watch_;
  int64_t repeated_ = 0;
  bool stepping_ = false;
  bool another_steps_ = false;
  std::vector<c10::TensorImpl*> counted_;  // parameters whose steps step_unless() has counted
};

}  // namespace muster::optim
