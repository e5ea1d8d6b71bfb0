#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include <ATen/ops/zeros.h>

#include "muster/base/error.h"
#include "optim/flat.h"
#include "optim/plan.h"

namespace muster::optim {
namespace {

namespace lib = torch::optim;

int64_t padded(int64_t count) { return (count + kFlatPadding - 1) / kFlatPadding * kFlatPadding; }

int64_t state_size(const ParameterEntry& entry) {
  return entry.local ? entry.local->value.numel() : padded(entry.impl->numel());
}

/// Sorts entries by the addresses of their values, so that neighbours in the values are neighbours in the states, too.
std::vector<ParameterEntry*> in_memory_order(std::vector<ParameterEntry*> entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const ParameterEntry* a, const ParameterEntry* b) {
    if (!a->local || !b->local) return a->local && !b->local;
    return std::less<>{}(a->local->value.const_data_ptr(), b->local->value.const_data_ptr());
  });
  return entries;
}

/// Makes one allocation for state k of all these entries that share a dtype and device.
void allocate(std::vector<ParameterEntry*> entries, size_t k) {
  while (!entries.empty()) {
    const auto dtype = entries.front()->dtype();
    const auto device = entries.front()->parameter.device();
    const auto options = at::TensorOptions().dtype(dtype).device(device);
    const auto others = std::stable_partition(entries.begin(), entries.end(), [&](const ParameterEntry* entry) {
      return entry->dtype() == dtype && entry->parameter.device() == device;
    });
    int64_t total = 0;
    for (auto it = entries.begin(); it != others; ++it) total += state_size(**it);
    const auto flat = at::zeros({total}, options);
    int64_t offset = 0;
    for (auto it = entries.begin(); it != others; ++it) {
      (*it)->states[k] = flat_alias(flat, offset, state_size(**it));
      offset += state_size(**it);
    }
    entries.erase(entries.begin(), others);
  }
}

/// Makes LibTorch's state object show our memory, with the values that it had before.
void take_over(UpdateRule rule, const lib::OptimizerOptions& options, ParameterEntry& entry, size_t k) {
  auto& shown = state_tensor(rule, *entry.state, k);
  if (shown.defined() && shown.is_same(entry.state_views[k])) return;
  const auto& flat = entry.states[k];
  const auto view = entry.whole ? shaped_alias(flat, 0, entry.parameter) : flat_alias(flat, 0, flat.numel());
  if (!shown.defined() || (!entry.whole && entry.step == 0)) {
    view.fill_(initial_value(rule, options));  // not only for new memory: a load may have removed the state
  } else if (entry.whole || shown.sizes() == view.sizes()) {
    view.copy_(shown);
  } else {
    throw UsageError("MU134", "the optimizer has stepped " + std::to_string(entry.step) +
                                  " times before its model was sharded, and its state cannot be split into this rank's "
                                  "part: prepare the optimizer before its first step");
  }
  shown = view;
  entry.state_views[k] = view;
}

lib::OptimizerParamState* find_or_make(UpdateRule rule, lib::Optimizer& inner, ParameterEntry& entry) {
  auto& states = inner.state();
  auto* state = find_state(states, entry);
  if (!state) {
    auto made = make_state(rule, inner);
    state = made.get();
    states[entry.impl] = std::move(made);
  }
  return state;
}

bool same_dtype(UpdateRule rule, const ParameterEntry& entry, StateSet states) {
  for (size_t k = 0; k < kMaxStates; ++k)
    if (const auto& shown = states[k] ? state_tensor(rule, *entry.state, k) : at::Tensor();
        shown.defined() && shown.scalar_type() != entry.dtype())
      return false;
  return true;
}

}  // namespace

bool attach_states(UpdateRule rule, lib::Optimizer& inner, std::vector<ParameterEntry>& entries) {
  const auto& groups = inner.param_groups();
  for (auto& entry : entries) {
    const auto states = states_of(rule, inner, groups[entry.group].options());
    if (!entry.active || (states.none() && rule != UpdateRule::elementwise)) continue;
    entry.state = find_or_make(rule, inner, entry);
    const auto* step = state_step(rule, *entry.state);
    entry.step = step ? *step : state_tensor(rule, *entry.state, 0).defined() ? 1 : 0;
    if (!same_dtype(rule, entry, states)) return false;
  }
  for (size_t k = 0; k < kMaxStates; ++k) {
    const auto wanted = [&](const ParameterEntry& entry) {
      return entry.active && states_of(rule, inner, groups[entry.group].options())[k];
    };
    std::vector<ParameterEntry*> without;
    for (auto& entry : entries)
      if (wanted(entry) && !entry.states[k].defined()) without.push_back(&entry);
    allocate(in_memory_order(std::move(without)), k);
    for (auto& entry : entries)
      if (wanted(entry)) take_over(rule, groups[entry.group].options(), entry, k);
  }
  return true;
}

}  // namespace muster::optim
