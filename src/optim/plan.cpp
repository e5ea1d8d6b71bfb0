#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "muster/base/error.h"
#include "optim/flat.h"
#include "optim/fused.h"

namespace muster::optim {
namespace {

/// What must be equal for all parameters of one call.
struct CallKey {
  size_t group;
  int64_t step;
  bool first;
  at::ScalarType dtype;
  at::Device device;
  bool operator==(const CallKey&) const = default;
};

CallKey key_of(UpdateRule rule, const ParameterEntry& entry) {
  const bool first = rule == UpdateRule::sgd && entry.step == 0;
  return {entry.group, entry.step, first, entry.dtype(), entry.parameter.device()};
}

/// Appends `next`; with `merge`, extends the last tensor by it instead, because it follows that tensor in memory.
void append(std::vector<at::Tensor>& list, const at::Tensor& next, bool merge) {
  if (merge) list.back() = flat_alias(list.back(), 0, list.back().numel() + next.numel());
  else list.push_back(next);
}

char* bytes_at(const at::Tensor& tensor, int64_t begin) {
  return static_cast<char*>(tensor.mutable_data_ptr()) + begin * static_cast<int64_t>(tensor.element_size());
}

}  // namespace

UpdatePlan::UpdatePlan(UpdateRule rule, torch::optim::Optimizer& inner, const std::vector<ParameterEntry>& entries) {
  std::vector<CallKey> keys;
  std::vector<std::vector<size_t>> members;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].active || entries[i].impl->numel() == 0) continue;
    const auto key = key_of(rule, entries[i]);
    size_t at = 0;
    while (at < keys.size() && !(keys[at] == key)) ++at;
    if (at == keys.size()) {
      keys.push_back(key);
      members.emplace_back();
    }
    members[at].push_back(i);
  }
  for (size_t at = 0; at < keys.size(); ++at) {
    calls_.emplace_back();
    calls_.back().group = keys[at].group;
    calls_.back().first = keys[at].first;
    calls_.back().step = keys[at].step;
    add_call(states_of(rule, inner, inner.param_groups()[keys[at].group].options()), entries, members[at]);
  }
}

std::vector<UpdatePlan::CallInput> UpdatePlan::inputs_of(const std::vector<ParameterEntry>& entries,
                                                         const std::vector<size_t>& members) {
  const auto& sample = entries[members.front()].parameter;
  const auto options = at::TensorOptions().dtype(entries[members.front()].dtype()).device(sample.device());
  if (!nothing_.defined()) nothing_ = at::empty({0}, options);
  const bool pad = sample.device().is_cpu();
  const auto tails = pad ? static_cast<int64_t>(members.size()) * kFlatPadding : 0;
  const auto tail_values = at::zeros({tails}, options), tail_gradients = at::zeros({tails}, options);
  int64_t tail_at = 0;
  std::vector<CallInput> inputs;
  for (const auto i : members) {
    const auto& entry = entries[i];
    if (entry.local) {
      if (entry.local->value.numel() > 0) inputs.push_back({i, entry.local->value, entry.local->gradient, 0, false});
      continue;
    }
    const auto count = entry.impl->numel(), tail = pad ? count % kFlatPadding : 0, body = count - tail;
    if (body > 0)
      inputs.push_back({i, flat_alias(entry.parameter, 0, body), flat_alias(entry.parameter, 0, body), 0, true});
    if (tail == 0) continue;
    const auto value = flat_alias(tail_values, tail_at, kFlatPadding);
    const auto gradient = flat_alias(tail_gradients, tail_at, kFlatPadding);
    tails_.push_back({i, value, gradient, body, tail});
    inputs.push_back({i, value, gradient, body, false});
    tail_at += kFlatPadding;
  }
  return inputs;
}

void UpdatePlan::add_call(StateSet states, const std::vector<ParameterEntry>& entries,
                          const std::vector<size_t>& members) {
  auto& call = calls_.back();
  auto inputs = inputs_of(entries, members);
  std::stable_sort(inputs.begin(), inputs.end(), [](const CallInput& a, const CallInput& b) {
    if (a.linked != b.linked) return a.linked;
    return !a.linked && std::less<>{}(a.value.const_data_ptr(), b.value.const_data_ptr());
  });
  bool fixed_before = false;
  for (const auto& input : inputs) {
    std::array<at::Tensor, kMaxStates> state;
    for (size_t k = 0; k < kMaxStates; ++k)
      if (states[k]) state[k] = flat_alias(entries[input.entry].states[k], input.state_begin, input.value.numel());
    bool merge = fixed_before && !input.linked && follows(call.values.back(), input.value) &&
                 follows(call.gradients.back(), input.gradient);
    for (size_t k = 0; k < kMaxStates && merge; ++k) merge = !states[k] || follows(call.states[k].back(), state[k]);
    append(call.values, input.value, merge);
    append(call.gradients, input.gradient, merge);
    for (size_t k = 0; k < kMaxStates; ++k)
      if (states[k]) append(call.states[k], state[k], merge);
    if (input.linked) {
      links_.push_back({input.entry, calls_.size() - 1, call.values.size() - 1});
      point_at(call.gradients.back(), nothing_, 0);
    }
    fixed_before = !input.linked;
  }
  if (call.values.empty()) return;
  const auto step = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(call.values.front().device()));
  call.steps.assign(call.values.size(), step);
}

void UpdatePlan::copy_in(const std::vector<ParameterEntry>& entries) {
  for (const auto& link : links_) point_at(calls_[link.call].gradients[link.input], entries[link.entry].gradient(), 0);
  for (const auto& tail : tails_) {
    const auto& entry = entries[tail.entry];
    const auto bytes = static_cast<size_t>(tail.count) * entry.parameter.element_size();
    std::memcpy(tail.value.mutable_data_ptr(), bytes_at(entry.parameter, tail.begin), bytes);
    std::memcpy(tail.gradient.mutable_data_ptr(), bytes_at(entry.gradient(), tail.begin), bytes);
  }
}

void UpdatePlan::copy_out(const std::vector<ParameterEntry>& entries) {
  for (const auto& tail : tails_) {
    const auto& entry = entries[tail.entry];
    const auto bytes = static_cast<size_t>(tail.count) * entry.parameter.element_size();
    std::memcpy(bytes_at(entry.parameter, tail.begin), tail.value.const_data_ptr(), bytes);
  }
  for (const auto& link : links_) {
    const auto& alias = calls_[link.call].gradients[link.input];
    // Releases the gradient, so that zero_grad(set_to_none) frees its memory.
    alias.unsafeGetTensorImpl()->set_storage_offset(0);
    alias.unsafeGetTensorImpl()->set_storage_keep_dtype(nothing_.storage());
  }
}

void UpdatePlan::run(UpdateRule rule, torch::optim::Optimizer& inner, const std::vector<ParameterEntry>& entries,
                     const std::optional<at::Tensor>& found_inf) {
  copy_in(entries);
  for (auto& call : calls_) {
    if (call.values.empty()) continue;
    call.found_inf = found_inf;
    run_update(rule, inner, inner.param_groups()[call.group].options(), call);
    ++call.step;
  }
  copy_out(entries);
}

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
