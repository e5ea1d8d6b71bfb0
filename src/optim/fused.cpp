#include "optim/fused.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "muster/base/error.h"
#include "optim/flat.h"
#include "optim/fused_impl.h"
#include "optim/step_check.h"

namespace muster::optim {

void FusedOptimizer::Impl::require_full_parameters() const {
  if (std::all_of(entries_.begin(), entries_.end(), [](const ParameterEntry& entry) { return entry.whole; })) return;
  const auto why = rule_ == UpdateRule::unfused
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
  require_full_parameters();
  auto loss = inner_->step(closure);
  reload_states();
  return loss;
}

/// Returns false, with nothing changed, where no fused kernel can make this step.
bool FusedOptimizer::Impl::step_fused(const std::optional<at::Tensor>& found_inf) {
  at::NoGradGuard no_grad;
  // The aliases that are updated have version counters of their own; parameters are marked in count_step().
  at::AutoDispatchBelowADInplaceOrView below;
  if (!can_step_fused()) return false;
  if (!plan_) {
    if (!attach_states(rule_, *inner_, entries_)) return false;
    if (rule_ != UpdateRule::elementwise)
      for (const auto& entry : entries_)
        if (entry.active && entry.parameter.is_cpu()) require_right_step(rule_, entry.dtype());
    plan_.emplace(rule_, *inner_, entries_);
  }
  const auto updated = updated_parameters();
  try {
    for (const auto& [owner, parameters] : updated) owner->begin_update();
    plan_->run(rule_, *inner_, entries_, found_inf);
    count_step();
    for (const auto& [owner, parameters] : updated) owner->end_update(parameters);
  } catch (const std::exception& error) {
    for (auto* owner : flat_parameters_) owner->abandon_update(error.what());
    throw;
  }
  return true;
}

std::vector<std::pair<FlatParameters*, std::vector<at::Tensor>>> FusedOptimizer::Impl::updated_parameters() const {
  std::vector<std::pair<FlatParameters*, std::vector<at::Tensor>>> all;
  for (auto* owner : flat_parameters_) {
    std::vector<at::Tensor> updated;
    for (const auto& entry : entries_)
      if (entry.active && entry.owner == owner) updated.push_back(entry.parameter);
    if (!updated.empty()) all.emplace_back(owner, std::move(updated));
  }
  return all;
}

void FusedOptimizer::Impl::count_step() {
  bool first = false;
  for (auto& entry : entries_) {
    if (!entry.active) continue;
    // Kernels wrote the flat memory and not the parameter, and a graph that saved it must notice.
    entry.impl->bump_version();
    entry.restrided_grad.reset();
    if (rule_ != UpdateRule::sgd) {
      *state_step(rule_, *entry.state) = ++entry.step;
    } else if (state_sets_[entry.group].any()) {
      first = first || entry.step == 0;
      entry.step = 1;
    }
  }
  if (first) plan_.reset();
}

at::Tensor FusedOptimizer::Impl::step(const lib::Optimizer::LossClosure& closure) {
  refuse_direct_step();
  // A line search moves parameters between the closure's calls.
  const auto stepping = c10::make_scope_exit([this, before = std::exchange(stepping_, true)] { stepping_ = before; });
  at::Tensor loss;
  if (rule_ == UpdateRule::unfused) {
    loss = step_inner(closure);
  } else {
    if (closure) {
      at::AutoGradMode with_grad(true);
      loss = closure();
    }
    if (!step_fused(std::nullopt)) step_inner(nullptr);
  }
  watch_.clear();
  return loss;
}

bool FusedOptimizer::Impl::takes_found_inf() {
  if (rule_ == UpdateRule::unfused || rule_ == UpdateRule::elementwise) return false;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  if (!can_step_fused()) return false;
  const bool fits = std::none_of(entries_.begin(), entries_.end(), [&](const ParameterEntry& entry) {
    if (!entry.active) return false;
    const bool begins_momentum = rule_ == UpdateRule::sgd && state_sets_[entry.group].any() && entry.step == 0;
    return begins_momentum || entry.parameter.is_cpu();
  });
  return fits && (plan_ || attach_states(rule_, *inner_, entries_));
}

void FusedOptimizer::Impl::step_unless(const at::Tensor& found_inf) {
  refuse_direct_step();
  const auto stepping = c10::make_scope_exit([this, before = std::exchange(stepping_, true)] { stepping_ = before; });
  TORCH_INTERNAL_ASSERT(step_fused(found_inf), "takes_found_inf() said so");
  counted_.clear();
  for (const auto& entry : entries_)
    if (entry.active) counted_.push_back(entry.impl);
  watch_.clear();
}

void FusedOptimizer::Impl::undo_step_count() {
  if (rule_ != UpdateRule::sgd)
    for (auto* impl : counted_)
      if (const auto found = inner_->state().find(impl); found != inner_->state().end())
        --*state_step(rule_, *found->second);
  counted_.clear();
  reload_states();
}

void FusedOptimizer::Impl::zero_grad(bool set_to_none) {
  refuse_direct_step();
  for (auto& entry : entries_) {
    if (entry.owner) {
      entry.owner->zero_grad(entry.parameter, set_to_none);
      continue;
    }
    if (!entry.impl->grad().defined()) continue;
    auto& gradient = entry.parameter.mutable_grad();
    if (set_to_none) gradient.reset();
    else gradient.detach_().zero_();  // as LibTorch's zero_grad: the old graph lets go of it
  }
  watch_.clear();
}

void FusedOptimizer::Impl::refuse_direct_step() {
  if (stepping_ || another_steps_) return;
  bool stepped = false;
  if (entries_current()) {
    stepped = watch_.all_changed(entries_);
    if (rule_ != UpdateRule::unfused && rule_ != UpdateRule::sgd)
      for (const auto& entry : entries_)
        if (entry.state && views_are_ours(rule_, find_state(inner_->state(), entry), entry) &&
            *state_step(rule_, *entry.state) != entry.step)
          stepped = true;
  }
  if (!stepped) return;
  watch_.clear();
  reload_states();  // reported once, then accepted
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
void FusedOptimizer::step_unless(const at::Tensor& found_inf) { impl_->step_unless(found_inf); }
bool FusedOptimizer::takes_found_inf() { return impl_->takes_found_inf(); }
void FusedOptimizer::undo_step_count() { impl_->undo_step_count(); }
void FusedOptimizer::zero_grad(bool set_to_none) { impl_->zero_grad(set_to_none); }
void FusedOptimizer::note_backward() { impl_->note_backward(); }
void FusedOptimizer::note_load() { impl_->note_load(); }
void FusedOptimizer::require_full_parameters() const {
  if (!fused()) impl_->require_full_parameters();
}
void FusedOptimizer::refuse_direct_step() { impl_->refuse_direct_step(); }
void FusedOptimizer::before_another_step() { impl_->before_another_step(); }
void FusedOptimizer::after_another_step() { impl_->after_another_step(); }
int64_t FusedOptimizer::repeated() const noexcept { return impl_->repeated(); }
bool FusedOptimizer::fused() const noexcept { return impl_->rule() != UpdateRule::unfused; }
std::string FusedOptimizer::describe() const {
  const auto* way = impl_->rule() == UpdateRule::elementwise ? ", by its update()"
                    : fused()                                ? ", fused"
                                                             : ", by its own step";
  return class_name(impl_->inner()) + way;
}
lib::Optimizer& FusedOptimizer::inner() const noexcept { return impl_->inner(); }

}  // namespace muster::optim
