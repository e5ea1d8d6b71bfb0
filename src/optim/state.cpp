#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include <ATen/ops/zeros.h>

#include "muster/base/error.h"
#include "optim/flat.h"
#include "optim/slot.h"

namespace muster::optim {
namespace {

namespace lib = torch::optim;

int64_t padded(int64_t count) { return (count + kFlatPadding - 1) / kFlatPadding * kFlatPadding; }

int64_t state_size(const Slot& slot) { return slot.local ? slot.local->value.numel() : padded(slot.impl->numel()); }

/// Slots in the order in which their values lie in memory, so that neighbours there are neighbours in their states too.
std::vector<Slot*> in_memory_order(std::vector<Slot*> slots) {
  std::stable_sort(slots.begin(), slots.end(), [](const Slot* a, const Slot* b) {
    if (!a->local || !b->local) return a->local && !b->local;
    return std::less<>{}(a->local->value.const_data_ptr(), b->local->value.const_data_ptr());
  });
  return slots;
}

/// One allocation for state k of all these slots of one dtype and device.
void allocate(std::vector<Slot*> slots, size_t k) {
  while (!slots.empty()) {
    const auto dtype = slots.front()->dtype();
    const auto device = slots.front()->parameter.device();
    const auto options = at::TensorOptions().dtype(dtype).device(device);
    const auto others = std::stable_partition(slots.begin(), slots.end(), [&](const Slot* slot) {
      return slot->dtype() == dtype && slot->parameter.device() == device;
    });
    int64_t total = 0;
    for (auto it = slots.begin(); it != others; ++it) total += state_size(**it);
    const auto flat = at::zeros({total}, options);
    int64_t offset = 0;
    for (auto it = slots.begin(); it != others; ++it) {
      (*it)->states[k] = flat_alias(flat, offset, state_size(**it));
      offset += state_size(**it);
    }
    slots.erase(slots.begin(), others);
  }
}

/// Lets LibTorch's state object show our memory, with what it held before.
void take_over(Rule rule, const lib::OptimizerOptions& options, Slot& slot, size_t k) {
  auto& shown = state_tensor(rule, *slot.state, k);
  if (shown.defined() && shown.is_same(slot.state_views[k])) return;
  const auto& flat = slot.states[k];
  const auto view = slot.whole ? shaped_alias(flat, 0, slot.parameter) : flat_alias(flat, 0, flat.numel());
  if (!shown.defined() || (!slot.whole && slot.step == 0)) {
    if (const double value = initial_value(rule, options); value != 0.0) view.fill_(value);
  } else if (slot.whole || shown.sizes() == view.sizes()) {
    view.copy_(shown);
  } else {
    throw UsageError("MU134", "the optimizer has stepped " + std::to_string(slot.step) +
                                  " times before its model was sharded, and its state cannot be split into this rank's "
                                  "part: prepare the optimizer before its first step");
  }
  shown = view;
  slot.state_views[k] = view;
}

lib::OptimizerParamState* find_or_make(Rule rule, lib::Optimizer& inner, Slot& slot) {
  auto& states = inner.state();
  auto* state = find_state(states, slot);
  if (!state) {
    auto made = make_state(rule, inner);
    state = made.get();
    states[slot.impl] = std::move(made);
  }
  return state;
}

bool same_dtype(Rule rule, const Slot& slot, StateSet states) {
  for (size_t k = 0; k < kMaxStates; ++k)
    if (const auto& shown = states[k] ? state_tensor(rule, *slot.state, k) : at::Tensor();
        shown.defined() && shown.scalar_type() != slot.dtype())
      return false;
  return true;
}

}  // namespace

bool attach_states(Rule rule, lib::Optimizer& inner, std::vector<Slot>& slots) {
  const auto& groups = inner.param_groups();
  for (auto& slot : slots) {
    const auto states = states_of(rule, inner, groups[slot.group].options());
    if (!slot.active || (states.none() && rule != Rule::elementwise)) continue;
    slot.state = find_or_make(rule, inner, slot);
    const auto* step = state_step(rule, *slot.state);
    slot.step = step ? *step : state_tensor(rule, *slot.state, 0).defined() ? 1 : 0;
    if (!same_dtype(rule, slot, states)) return false;
  }
  for (size_t k = 0; k < kMaxStates; ++k) {
    const auto wanted = [&](const Slot& slot) {
      return slot.active && states_of(rule, inner, groups[slot.group].options())[k];
    };
    std::vector<Slot*> without;
    for (auto& slot : slots)
      if (wanted(slot) && !slot.states[k].defined()) without.push_back(&slot);
    allocate(in_memory_order(std::move(without)), k);
    for (auto& slot : slots)
      if (wanted(slot)) take_over(rule, groups[slot.group].options(), slot, k);
  }
  return true;
}

}  // namespace muster::optim
