#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "optim/direct_step.h"
#include "optim/fused.h"
#include "optim/plan.h"

namespace muster::optim {

namespace lib = torch::optim;

class FusedOptimizer::Impl {
 public:
  Impl(lib::Optimizer& inner, std::vector<FlatParameters*> flat_parameters)
      : inner_(&inner), flat_parameters_(std::move(flat_parameters)), rule_(update_rule_of(inner)) {
    refresh_entries();
  }

  void add_flat_parameters(FlatParameters& flat_parameters) {
    flat_parameters_.push_back(&flat_parameters);
    entries_.clear();
    refresh_entries();
  }

  at::Tensor step(const lib::Optimizer::LossClosure& closure);
  void step_unless(const at::Tensor& found_inf);
  bool takes_found_inf();
  void undo_step_count();
  void zero_grad(bool set_to_none);
  void note_backward() {
    if (stepping_ || another_steps_) return;
    refresh_entries();
    watch_.note(entries_, rule_ == UpdateRule::sgd || rule_ == UpdateRule::unfused);
  }
  void note_load() {
    watch_.clear();
    reload_states();
  }
  void refuse_direct_step();
  void before_another_step() {
    refuse_direct_step();
    another_steps_ = true;
  }
  void after_another_step() {
    another_steps_ = false;
    if (entries_current() && watch_.any_changed(entries_)) watch_.clear();
  }
  int64_t repeated() const { return repeated_; }
  /// Requires: the optimizer's own step() is needed.
  void require_full_parameters() const;

  lib::Optimizer& inner() const { return *inner_; }
  UpdateRule rule() const { return rule_; }

 private:
  bool entries_current() const;
  int64_t revision() const;
  void refresh_entries();
  void fill_entry(ParameterEntry& entry) const;
  void keep_states(const std::vector<ParameterEntry>& before);
  /// Whether fused kernels can make this step. Also finds which parameters have gradients, and drops the plan if it no
  /// longer fits.
  bool can_step_fused();
  bool can_step_fused(ParameterEntry& entry);
  bool align_gradient(ParameterEntry& entry) const;
  /// For each of the flat parameters, the parameters that this step updates.
  std::vector<std::pair<FlatParameters*, std::vector<at::Tensor>>> updated_parameters() const;
  at::Tensor step_inner(const lib::Optimizer::LossClosure& closure);
  bool step_fused(const std::optional<at::Tensor>& found_inf);
  void count_step();
  void reload_states();

  lib::Optimizer* inner_;
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
