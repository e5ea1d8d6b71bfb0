#include <unordered_map>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>

#include "optim/distinct.h"
#include "optim/flat.h"
#include "optim/fused_impl.h"

namespace muster::optim {
namespace {

/// A device that a program brought may lack them, and then the optimizer runs its own step().
bool device_has_kernels(const at::Tensor& parameter) {
  const auto key = c10::computeDispatchKey(parameter.scalar_type(), at::kStrided, parameter.device());
  for (const char* name : {"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_"})
    if (!c10::Dispatcher::singleton().findSchemaOrThrow(name, "").hasComputedKernelForDispatchKey(key)) return false;
  return true;
}

bool has_kernel(const at::Tensor& parameter) {
  switch (parameter.scalar_type()) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16: break;
    default: return false;
  }
  return parameter.device().is_cpu() || parameter.device().is_cuda() || device_has_kernels(parameter);
}

}  // namespace

int64_t FusedOptimizer::Impl::revision() const {
  int64_t sum = 0;
  for (const auto* owner : flat_parameters_) sum += owner->revision();
  return sum;
}

bool FusedOptimizer::Impl::entries_current() const {
  if (revision() != revision_) return false;
  size_t at = 0;
  for (const auto& group : inner_->param_groups())
    for (const auto& parameter : group.params()) {
      if (at == entries_.size() || entries_[at].impl != parameter.unsafeGetTensorImpl()) return false;
      ++at;
    }
  return at == entries_.size();
}

void FusedOptimizer::Impl::refresh_entries() {
  if (!entries_.empty() && entries_current()) return;
  auto before = std::move(entries_);
  entries_.clear();
  revision_ = revision();
  plan_.reset();
  watch_.clear();
  repeated_ += remove_repeated(*inner_);
  const auto& groups = inner_->param_groups();
  for (size_t g = 0; g < groups.size(); ++g)
    for (const auto& parameter : groups[g].params()) {
      ParameterEntry entry;
      entry.parameter = parameter;
      entry.impl = parameter.unsafeGetTensorImpl();
      entry.group = g;
      fill_entry(entry);
      entries_.push_back(std::move(entry));
    }
  keep_states(before);
}

/// The memory of states stays where the parameter's does.
void FusedOptimizer::Impl::keep_states(const std::vector<ParameterEntry>& before) {
  std::unordered_map<const c10::TensorImpl*, const ParameterEntry*> known;
  for (const auto& entry : before) known[entry.impl] = &entry;
  for (auto& entry : entries_) {
    const auto found = known.find(entry.impl);
    if (found == known.end() || found->second->local != entry.local) continue;
    entry.states = found->second->states;
    entry.state_views = found->second->state_views;
  }
}

void FusedOptimizer::Impl::fill_entry(ParameterEntry& entry) const {
  for (auto* owner : flat_parameters_) {
    entry.local = owner->find(entry.parameter);
    if (!entry.local) continue;
    entry.owner = owner;
    const auto& value = entry.local->value;
    entry.whole =
        !entry.local->sharded && entry.impl->has_storage() && value.numel() >= entry.impl->numel() &&
        (entry.impl->numel() == 0 || entry.address() == ParameterEntry::address_of(value.unsafeGetTensorImpl()));
    break;
  }
  if (rule_ == UpdateRule::unfused) return;
  entry.state = find_state(inner_->state(), entry);
  if (!entry.state) return;
  const auto* step = state_step(rule_, *entry.state);
  entry.step = step ? *step : 1;
}

/// Copies the gradient into the parameter's strides if they differ. Returns false if only the optimizer's own step can
/// use it.
bool FusedOptimizer::Impl::align_gradient(ParameterEntry& entry) const {
  const auto& gradient = entry.impl->grad();
  const auto& parameter = entry.parameter;
  if (gradient.layout() != at::kStrided || gradient.scalar_type() != parameter.scalar_type() ||
      gradient.device() != parameter.device())
    return false;
  if (same_layout(gradient, parameter)) return true;
  entry.restrided_grad = at::empty_like(parameter).copy_(gradient);
  return true;
}

bool FusedOptimizer::Impl::can_step_fused(ParameterEntry& entry) {
  entry.restrided_grad.reset();
  const bool active = entry.owner ? entry.owner->has_gradient(entry.parameter) : entry.impl->grad().defined();
  if (active != entry.active) {
    entry.active = active;
    plan_.reset();
  }
  if (!active) return true;
  if (entry.owner) {
    if (!entry.local->value.defined() || !has_kernel(entry.local->value)) return false;
  } else {
    if (!has_kernel(entry.parameter) || !is_dense(entry.parameter) || !align_gradient(entry)) return false;
    if (const auto* data = entry.address(); data != entry.data) {
      entry.data = data;
      plan_.reset();
    }
  }
  if (!views_are_ours(rule_, find_state(inner_->state(), entry), entry))
    plan_.reset();  // loaded, or made by inner.step()
  return true;
}

bool FusedOptimizer::Impl::can_step_fused() {
  refresh_entries();
  const auto& groups = inner_->param_groups();
  if (state_sets_.size() != groups.size()) plan_.reset();
  state_sets_.resize(groups.size());
  for (size_t g = 0; g < groups.size(); ++g)
    if (const auto states = states_of(rule_, *inner_, groups[g].options()); states != state_sets_[g]) {
      state_sets_[g] = states;
      plan_.reset();
    }
  bool all = true;
  for (auto& entry : entries_) all = can_step_fused(entry) && all;
  return all;
}

/// Reads what LibTorch's state objects say after a step that was not ours.
void FusedOptimizer::Impl::reload_states() {
  plan_.reset();
  if (rule_ == UpdateRule::unfused) return;
  for (auto& entry : entries_) {
    entry.state = find_state(inner_->state(), entry);
    entry.step = 0;
    if (!entry.state) continue;
    const auto* step = state_step(rule_, *entry.state);
    entry.step = step ? *step : 1;
  }
}

}  // namespace muster::optim
