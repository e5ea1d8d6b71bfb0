#include "muster/optim/detail/fused.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/ScopeExit.h>

#include "muster/base/error.h"
#include "muster/optim/detail/distinct.h"
#include "optim/direct_step.h"
#include "optim/flat.h"
#include "optim/plan.h"

namespace muster::optim {
namespace {

namespace lib = torch::optim;

bool has_kernel(const at::Tensor& parameter) {
  switch (parameter.scalar_type()) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16: break;
    default: return false;
  }
  return parameter.device().is_cpu() || parameter.device().is_cuda();
}

}  // namespace

class FusedOptimizer::Impl {
 public:
  Impl(lib::Optimizer& inner, std::vector<FlatParameters*> flat_parameters)
      : inner_(&inner), flat_parameters_(std::move(flat_parameters)), rule_(rule_of(inner)) {
    refresh_slots();
  }

  void add_flat_parameters(FlatParameters& flat_parameters) {
    flat_parameters_.push_back(&flat_parameters);
    slots_.clear();
    refresh_slots();
  }

  at::Tensor step(const lib::Optimizer::LossClosure& closure);
  void zero_grad(bool set_to_none);
  void note_backward() {
    if (stepping_ || another_steps_) return;
    refresh_slots();
    watch_.note(slots_, rule_ == Rule::sgd || rule_ == Rule::unfused);
  }
  void note_load() {
    watch_.forget();
    follow_states();
  }
  void refuse_direct_step();
  void before_another_step() {
    refuse_direct_step();
    another_steps_ = true;
  }
  void after_another_step() {
    another_steps_ = false;
    if (slots_current() && watch_.touched(slots_)) watch_.forget();
  }
  int64_t repeated() const { return repeated_; }
  /// Requires: the optimizer's own step() is needed.
  void refuse_parts() const;

  lib::Optimizer& inner() const { return *inner_; }
  Rule rule() const { return rule_; }

 private:
  bool slots_current() const;
  int64_t revision() const;
  void refresh_slots();
  void fill_slot(Slot& slot) const;
  void keep_states(const std::vector<Slot>& before);
  bool inspect();
  bool inspect(Slot& slot);
  bool align_gradient(Slot& slot) const;
  void begin_update();
  void end_update();
  at::Tensor step_inner(const lib::Optimizer::LossClosure& closure);
  bool step_fused();
  void count_step();
  void follow_states();

  lib::Optimizer* inner_;
  std::vector<FlatParameters*> flat_parameters_;
  Rule rule_;
  std::vector<Slot> slots_;
  int64_t revision_ = 0;              // of the flat parameters, as the slots were filled
  std::vector<StateSet> state_sets_;  // per group, as planned
  std::optional<UpdatePlan> plan_;
  DirectStepWatch watch_;
  int64_t repeated_ = 0;
  bool stepping_ = false;
  bool another_steps_ = false;
};

int64_t FusedOptimizer::Impl::revision() const {
  int64_t sum = 0;
  for (const auto* owner : flat_parameters_) sum += owner->revision();
  return sum;
}

bool FusedOptimizer::Impl::slots_current() const {
  if (revision() != revision_) return false;
  size_t at = 0;
  for (const auto& group : inner_->param_groups())
    for (const auto& parameter : group.params()) {
      if (at == slots_.size() || slots_[at].impl != parameter.unsafeGetTensorImpl()) return false;
      ++at;
    }
  return at == slots_.size();
}

void FusedOptimizer::Impl::refresh_slots() {
  if (!slots_.empty() && slots_current()) return;
  auto before = std::move(slots_);
  slots_.clear();
  revision_ = revision();
  plan_.reset();
  watch_.forget();
  repeated_ += remove_repeated(*inner_);
  const auto& groups = inner_->param_groups();
  for (size_t g = 0; g < groups.size(); ++g)
    for (const auto& parameter : groups[g].params()) {
      Slot slot;
      slot.parameter = parameter;
      slot.impl = parameter.unsafeGetTensorImpl();
      slot.group = g;
      fill_slot(slot);
      slots_.push_back(std::move(slot));
    }
  keep_states(before);
}

/// The memory of states stays where the parameter's does.
void FusedOptimizer::Impl::keep_states(const std::vector<Slot>& before) {
  std::unordered_map<const c10::TensorImpl*, const Slot*> known;
  for (const auto& slot : before) known[slot.impl] = &slot;
  for (auto& slot : slots_) {
    const auto found = known.find(slot.impl);
    if (found == known.end() || found->second->local != slot.local) continue;
    slot.states = found->second->states;
    slot.state_views = found->second->state_views;
  }
}

void FusedOptimizer::Impl::fill_slot(Slot& slot) const {
  for (auto* owner : flat_parameters_) {
    slot.local = owner->find(slot.parameter);
    if (!slot.local) continue;
    slot.owner = owner;
    const auto& value = slot.local->value;
    slot.whole = !slot.local->sharded && slot.impl->has_storage() && value.numel() >= slot.impl->numel() &&
                 (slot.impl->numel() == 0 || slot.address() == Slot::address_of(value.unsafeGetTensorImpl()));
    break;
  }
  if (rule_ == Rule::unfused) return;
  slot.state = find_state(inner_->state(), slot);
  if (!slot.state) return;
  const auto* step = state_step(rule_, *slot.state);
  slot.step = step ? *step : 1;
}

/// Copies the gradient into the parameter's strides if they differ. Returns false if only the optimizer's own step can
/// use it.
bool FusedOptimizer::Impl::align_gradient(Slot& slot) const {
  const auto& gradient = slot.impl->grad();
  const auto& parameter = slot.parameter;
  if (gradient.layout() != at::kStrided || gradient.scalar_type() != parameter.scalar_type() ||
      gradient.device() != parameter.device())
    return false;
  if (same_layout(gradient, parameter)) return true;
  slot.restrided_grad = at::empty_like(parameter).copy_(gradient);
  return true;
}

/// Whether a fused kernel can update this parameter; notes whether it has a gradient.
bool FusedOptimizer::Impl::inspect(Slot& slot) {
  slot.restrided_grad.reset();
  const bool active = slot.owner ? slot.owner->has_gradient(slot.parameter) : slot.impl->grad().defined();
  if (active != slot.active) {
    slot.active = active;
    plan_.reset();
  }
  if (!active) return true;
  if (slot.owner) {
    if (!slot.local->value.defined() || !has_kernel(slot.local->value)) return false;
  } else {
    if (!has_kernel(slot.parameter) || !is_dense(slot.parameter) || !align_gradient(slot)) return false;
    if (const auto* data = slot.address(); data != slot.data) {
      slot.data = data;
      plan_.reset();
    }
  }
  if (!views_are_ours(rule_, find_state(inner_->state(), slot), slot))
    plan_.reset();  // loaded, or made by inner.step()
  return true;
}

bool FusedOptimizer::Impl::inspect() {
  refresh_slots();
  const auto& groups = inner_->param_groups();
  if (state_sets_.size() != groups.size()) plan_.reset();
  state_sets_.resize(groups.size());
  for (size_t g = 0; g < groups.size(); ++g)
    if (const auto states = states_of(rule_, *inner_, groups[g].options()); states != state_sets_[g]) {
      state_sets_[g] = states;
      plan_.reset();
    }
  bool all = true;
  for (auto& slot : slots_) all = inspect(slot) && all;
  return all;
}

/// Reads what LibTorch's state objects say after a step that was not ours.
void FusedOptimizer::Impl::follow_states() {
  plan_.reset();
  if (rule_ == Rule::unfused) return;
  for (auto& slot : slots_) {
    slot.state = find_state(inner_->state(), slot);
    slot.step = 0;
    if (!slot.state) continue;
    const auto* step = state_step(rule_, *slot.state);
    slot.step = step ? *step : 1;
  }
}

void FusedOptimizer::Impl::refuse_parts() const {
  if (std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.whole; })) return;
  const auto why = rule_ == Rule::unfused
                       ? class_name(*inner_) + " needs full parameters, since it " + why_full(*inner_)
                       : class_name(*inner_) +
                             " has to run its own step() for a gradient or state of another dtype, device or layout "
                             "than its parameter's, which needs full parameters";
  throw UsageError(
      "MU134",
      why +
          "; this rank holds only a part of some: use SGD, Adam, AdamW, Adagrad or RMSprop with dense gradients, or a "
          "strategy that keeps parameters whole (\"ddp\")");
}

at::Tensor FusedOptimizer::Impl::step_inner(const lib::Optimizer::LossClosure& closure) {
  refuse_parts();
  auto loss = inner_->step(closure);
  follow_states();
  return loss;
}

/// Returns false, with nothing changed, where no fused kernel can make this step.
bool FusedOptimizer::Impl::step_fused() {
  at::NoGradGuard no_grad;
  // The aliases that are updated have version counters of their own; parameters are marked in count_step().
  at::AutoDispatchBelowADInplaceOrView below;
  if (!inspect()) return false;
  if (!plan_) {
    if (!attach_states(rule_, *inner_, slots_)) return false;
    plan_.emplace(rule_, *inner_, slots_);
  }
  begin_update();
  plan_->run(rule_, *inner_, slots_);
  count_step();
  end_update();
  return true;
}

void FusedOptimizer::Impl::begin_update() {
  for (auto* owner : flat_parameters_) owner->begin_update();
}

void FusedOptimizer::Impl::end_update() {
  for (auto* owner : flat_parameters_) {
    std::vector<at::Tensor> updated;
    for (const auto& slot : slots_)
      if (slot.active && slot.owner == owner) updated.push_back(slot.parameter);
    if (!updated.empty()) owner->end_update(updated);
  }
}

void FusedOptimizer::Impl::count_step() {
  bool first = false;
  for (auto& slot : slots_) {
    if (!slot.active) continue;
    // Kernels wrote the flat memory and not the parameter, and a graph that saved it must notice.
    slot.impl->bump_version();
    slot.restrided_grad.reset();
    if (rule_ != Rule::sgd) {
      *state_step(rule_, *slot.state) = ++slot.step;
    } else if (state_sets_[slot.group].any()) {
      first = first || slot.step == 0;
      slot.step = 1;
    }
  }
  if (first) plan_.reset();
}

at::Tensor FusedOptimizer::Impl::step(const lib::Optimizer::LossClosure& closure) {
  refuse_direct_step();
  // A line search moves parameters between the closure's calls.
  const auto stepping = c10::make_scope_exit([this, before = std::exchange(stepping_, true)] { stepping_ = before; });
  at::Tensor loss;
  if (rule_ == Rule::unfused) {
    loss = step_inner(closure);
  } else {
    if (closure) {
      at::AutoGradMode with_grad(true);
      loss = closure();
    }
    if (!step_fused()) step_inner(nullptr);
  }
  watch_.forget();
  return loss;
}

void FusedOptimizer::Impl::zero_grad(bool set_to_none) {
  refuse_direct_step();
  for (auto& slot : slots_) {
    if (slot.owner) {
      slot.owner->zero_grad(slot.parameter, set_to_none);
      continue;
    }
    if (!slot.impl->grad().defined()) continue;
    auto& gradient = slot.parameter.mutable_grad();
    if (set_to_none) gradient.reset();
    else gradient.detach_().zero_();  // as LibTorch's zero_grad: the old graph lets go of it
  }
  watch_.forget();
}

void FusedOptimizer::Impl::refuse_direct_step() {
  if (stepping_ || another_steps_) return;
  bool stepped = false;
  if (slots_current()) {
    stepped = watch_.moved(slots_);
    if (rule_ != Rule::unfused && rule_ != Rule::sgd)
      for (const auto& slot : slots_)
        if (slot.state && views_are_ours(rule_, find_state(inner_->state(), slot), slot) &&
            *state_step(rule_, *slot.state) != slot.step)
          stepped = true;
  }
  if (!stepped) return;
  watch_.forget();
  follow_states();  // reported once, then accepted
  throw UsageError("MU133", "parameters changed after backward, as by a step() of the " + class_name(*inner_) +
                                " that was prepared: call step() on the optimizer that prepare() returned, and edit "
                                "parameters only after that step");
}

FusedOptimizer::FusedOptimizer(lib::Optimizer& inner, std::vector<FlatParameters*> flat_parameters)
    : impl_(std::make_unique<Impl>(inner, std::move(flat_parameters))) {}
FusedOptimizer::~FusedOptimizer() = default;
FusedOptimizer::FusedOptimizer(FusedOptimizer&&) noexcept = default;
FusedOptimizer& FusedOptimizer::operator=(FusedOptimizer&&) noexcept = default;

void FusedOptimizer::add_flat_parameters(FlatParameters& flat_parameters) {
  impl_->add_flat_parameters(flat_parameters);
}
at::Tensor FusedOptimizer::step(const lib::Optimizer::LossClosure& closure) { return impl_->step(closure); }
void FusedOptimizer::zero_grad(bool set_to_none) { impl_->zero_grad(set_to_none); }
void FusedOptimizer::note_backward() { impl_->note_backward(); }
void FusedOptimizer::note_load() { impl_->note_load(); }
void FusedOptimizer::refuse_parts() const {
  if (!fused()) impl_->refuse_parts();
}
void FusedOptimizer::refuse_direct_step() { impl_->refuse_direct_step(); }
void FusedOptimizer::before_another_step() { impl_->before_another_step(); }
void FusedOptimizer::after_another_step() { impl_->after_another_step(); }
int64_t FusedOptimizer::repeated() const noexcept { return impl_->repeated(); }
bool FusedOptimizer::fused() const noexcept { return impl_->rule() != Rule::unfused; }
std::string FusedOptimizer::describe() const {
  const auto* way = impl_->rule() == Rule::elementwise ? ", by its update()"
                    : fused()                          ? ", fused"
                                                       : ", by its own step";
  return class_name(impl_->inner()) + way;
}
lib::Optimizer& FusedOptimizer::inner() const noexcept { return impl_->inner(); }

}  // namespace muster::optim
