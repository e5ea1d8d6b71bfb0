#include "optim/fused.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "hook/below_autograd.h"
#include "muster/base/error.h"
#include "optim/flat.h"
#include "optim/parameter_groups.h"

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
  std::vector<std::pair<CallKey, std::vector<size_t>>> calls;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].active || entries[i].impl->numel() == 0) continue;
    const auto key = key_of(rule, entries[i]);
    auto found = std::ranges::find_if(calls, [&](const auto& call) { return call.first == key; });
    if (found == calls.end()) found = calls.insert(found, {key, {}});
    found->second.push_back(i);
  }
  for (const auto& [key, members] : calls) {
    auto& call = calls_.emplace_back();
    call.group = key.group;
    call.first = key.first;
    call.step = key.step;
    add_call(states_of(rule, inner, inner.param_groups()[key.group].options()), entries, members);
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

void UpdatePlan::run(UpdateRule rule, torch::optim::Optimizer& inner, const std::vector<ParameterEntry>& entries,
                     const std::optional<at::Tensor>& found_inf) {
  for (const auto& link : links_) point_at(calls_[link.call].gradients[link.input], entries[link.entry].gradient(), 0);
  const auto bytes_of = [&](const Tail& tail) { return static_cast<size_t>(tail.count) * tail.value.element_size(); };
  for (const auto& tail : tails_) {
    const auto& entry = entries[tail.entry];
    std::memcpy(tail.value.mutable_data_ptr(), bytes_at(entry.parameter, tail.begin), bytes_of(tail));
    std::memcpy(tail.gradient.mutable_data_ptr(), bytes_at(entry.gradient(), tail.begin), bytes_of(tail));
  }
  for (auto& call : calls_) {
    if (call.values.empty()) continue;
    call.found_inf = found_inf;
    run_update(rule, inner, inner.param_groups()[call.group].options(), call);
    ++call.step;
  }
  for (const auto& tail : tails_)
    std::memcpy(bytes_at(entries[tail.entry].parameter, tail.begin), tail.value.const_data_ptr(), bytes_of(tail));
  // Releases the gradients, so that zero_grad(set_to_none) frees their memory.
  for (const auto& link : links_) point_at(calls_[link.call].gradients[link.input], nothing_, 0);
}

namespace {

namespace lib = torch::optim;

int64_t state_size(const ParameterEntry& entry) {
  return entry.local ? entry.local->value.numel() : padded(entry.impl->numel());
}

/// Makes one allocation for state k of all these entries that share a dtype and device. They are sorted by the
/// addresses of their values, so that neighbours in the values are neighbours in the states, too.
void allocate(std::vector<ParameterEntry*> entries, size_t k) {
  std::ranges::stable_sort(entries, [](const ParameterEntry* a, const ParameterEntry* b) {
    if (!a->local || !b->local) return a->local && !b->local;
    return std::less<>{}(a->local->value.const_data_ptr(), b->local->value.const_data_ptr());
  });
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

/// The number of updates that a parameter with this state has had; 1 for any number of SGD, which does not count them.
int64_t updates_in(UpdateRule rule, lib::OptimizerParamState& state) {
  if (const auto* step = state_step(rule, state)) return *step;
  return state_tensor(rule, state, 0).defined() ? 1 : 0;
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
    auto& state = inner.state()[entry.impl];
    if (!state) state = make_state(rule, inner);
    entry.state = state.get();
    entry.step = updates_in(rule, *entry.state);
    if (!same_dtype(rule, entry, states)) return false;
  }
  for (size_t k = 0; k < kMaxStates; ++k) {
    const auto wanted = [&](const ParameterEntry& entry) {
      return entry.active && states_of(rule, inner, groups[entry.group].options())[k];
    };
    std::vector<ParameterEntry*> without;
    for (auto& entry : entries)
      if (wanted(entry) && !entry.states[k].defined()) without.push_back(&entry);
    allocate(std::move(without), k);
    for (auto& entry : entries)
      if (wanted(entry)) take_over(rule, groups[entry.group].options(), entry, k);
  }
  return true;
}

namespace {

constexpr size_t kSamples = 4;

// Every in-place operator increments the version, so a new version shows that other code made a step.
uint32_t version_of(const ParameterEntry& entry) { return entry.impl->version_counter().current_version(); }

}  // namespace

void DirectStepWatch::note(const std::vector<ParameterEntry>& entries, bool values) {
  clear();
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    const auto& gradient = entry.impl->grad();
    if (!entry.whole || !gradient.defined()) continue;
    marks_.push_back({i, version_of(entry)});
    if (!values || samples_.size() == kSamples || !entry.parameter.device().is_cpu()) continue;
    if (gradient.layout() != at::kStrided || !gradient.is_non_overlapping_and_dense() ||
        !entry.parameter.is_non_overlapping_and_dense())
      continue;
    Sample sample{i, std::min(kSampleBytes, gradient.nbytes()), {}};
    const auto* begin = static_cast<const char*>(gradient.const_data_ptr());
    // Where the gradient is zero, an update may leave the value unchanged.
    if (std::all_of(begin, begin + sample.bytes, [](char c) { return c == 0; })) continue;
    std::memcpy(sample.values.data(), entry.parameter.const_data_ptr(), sample.bytes);
    samples_.push_back(sample);
  }
}

void DirectStepWatch::clear() noexcept {
  marks_.clear();
  samples_.clear();
}

bool DirectStepWatch::changed(const ParameterEntry& entry, const Mark& mark) {
  return version_of(entry) != mark.version;
}

bool DirectStepWatch::changed(const ParameterEntry& entry, const Sample& sample) {
  return std::memcmp(entry.parameter.const_data_ptr(), sample.values.data(), sample.bytes) != 0;
}

bool DirectStepWatch::all_changed(const std::vector<ParameterEntry>& entries) const {
  const auto all = [&](const auto& notes) {
    return !notes.empty() && std::all_of(notes.begin(), notes.end(),
                                         [&](const auto& note) { return changed(entries[note.entry], note); });
  };
  return all(marks_) || all(samples_);
}

bool DirectStepWatch::any_changed(const std::vector<ParameterEntry>& entries) const {
  const auto any = [&](const auto& notes) {
    return std::any_of(notes.begin(), notes.end(),
                       [&](const auto& note) { return changed(entries[note.entry], note); });
  };
  return any(marks_) || any(samples_);
}

namespace lib = torch::optim;

FusedStep::FusedStep(lib::Optimizer& inner, std::vector<FlatParameters*> flat_parameters)
    : inner_(&inner), flat_parameters_(std::move(flat_parameters)), rule_(update_rule_of(inner)) {
  refresh_entries();
}

void FusedStep::add_flat_parameters(FlatParameters& flat_parameters) {
  flat_parameters_.push_back(&flat_parameters);
  entries_.clear();
  refresh_entries();
}

void FusedStep::note_backward() {
  if (stepping_ || another_steps_) return;
  refresh_entries();
  watch_.note(entries_, rule_ == UpdateRule::sgd || rule_ == UpdateRule::unfused);
}

void FusedStep::note_load() {
  watch_.clear();
  reload_states();
}

void FusedStep::before_another_step() {
  refuse_direct_step();
  another_steps_ = true;
}

void FusedStep::after_another_step() {
  another_steps_ = false;
  if (entries_current() && watch_.any_changed(entries_)) watch_.clear();
}

void FusedStep::require_full_parameters() const {
  if (!fused()) require_whole_parameters();
}

void FusedStep::require_whole_parameters() const {
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

at::Tensor FusedStep::step_inner(const lib::Optimizer::LossClosure& closure) {
  require_whole_parameters();
  auto loss = inner_->step(closure);
  reload_states();
  return loss;
}

/// Returns false, with nothing changed, if fused kernels cannot make this step.
bool FusedStep::step_fused(const std::optional<at::Tensor>& found_inf) {
  // The aliases that are updated have their own version counters; count_step() marks the parameters.
  const hook::BelowAutograd below;
  if (!can_step_fused()) return false;
  if (!plan_) {
    if (!attach_states(rule_, *inner_, entries_)) return false;
    if (rule_ != UpdateRule::elementwise)
      for (const auto& entry : entries_)
        if (entry.active && entry.parameter.is_cpu()) require_right_step(rule_, entry.dtype());
    plan_.emplace(rule_, *inner_, entries_);
  }
  std::vector<std::pair<FlatParameters*, std::vector<at::Tensor>>> updated;
  for (auto* owner : flat_parameters_) {
    std::vector<at::Tensor> parameters;
    for (const auto& entry : entries_)
      if (entry.active && entry.owner == owner) parameters.push_back(entry.parameter);
    if (!parameters.empty()) updated.emplace_back(owner, std::move(parameters));
  }
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

void FusedStep::count_step() {
  bool first = false;
  for (auto& entry : entries_) {
    if (!entry.active) continue;
    // The kernels wrote flat memory, not the parameter itself. A graph that saved the parameter must notice.
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

at::Tensor FusedStep::step(const lib::Optimizer::LossClosure& closure) {
  refuse_direct_step();
  // A line search moves parameters between calls of the closure.
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

bool FusedStep::takes_found_inf() {
  if (rule_ == UpdateRule::unfused || rule_ == UpdateRule::elementwise) return false;
  const hook::BelowAutograd below;
  if (!can_step_fused()) return false;
  const bool fits = std::none_of(entries_.begin(), entries_.end(), [&](const ParameterEntry& entry) {
    if (!entry.active) return false;
    const bool begins_momentum = rule_ == UpdateRule::sgd && state_sets_[entry.group].any() && entry.step == 0;
    return begins_momentum || entry.parameter.is_cpu();
  });
  return fits && (plan_ || attach_states(rule_, *inner_, entries_));
}

void FusedStep::step_unless(const at::Tensor& found_inf) {
  refuse_direct_step();
  const auto stepping = c10::make_scope_exit([this, before = std::exchange(stepping_, true)] { stepping_ = before; });
  TORCH_INTERNAL_ASSERT(step_fused(found_inf), "takes_found_inf() said so");
  counted_.clear();
  for (const auto& entry : entries_)
    if (entry.active) counted_.push_back(entry.impl);
  watch_.clear();
}

void FusedStep::undo_step_count() {
  if (rule_ != UpdateRule::sgd)
    for (auto* impl : counted_)
      if (const auto found = inner_->state().find(impl); found != inner_->state().end())
        --*state_step(rule_, *found->second);
  counted_.clear();
  reload_states();
}

void FusedStep::zero_grad(bool set_to_none) {
  refuse_direct_step();
  for (auto& entry : entries_) {
    if (entry.owner) {
      entry.owner->zero_grad(entry.parameter, set_to_none);
      continue;
    }
    if (!entry.impl->grad().defined()) continue;
    auto& gradient = entry.parameter.mutable_grad();
    if (set_to_none) gradient.reset();
    else gradient.detach_().zero_();  // as LibTorch's zero_grad: releases the old graph
  }
  watch_.clear();
}

void FusedStep::refuse_direct_step() {
  if (stepping_ || another_steps_) return;
  bool stepped = false;
  if (entries_current()) {
    stepped = watch_.all_changed(entries_);
    if (rule_ != UpdateRule::unfused && rule_ != UpdateRule::sgd)
      for (const auto& entry : entries_)
        if (entry.state && views_are_ours(entry) && *state_step(rule_, *entry.state) != entry.step) stepped = true;
  }
  if (!stepped) return;
  watch_.clear();
  reload_states();  // reports a direct step once, then accepts it
  throw UsageError("MU133", "parameters changed after backward, as by a step() of the " + class_name(*inner_) +
                                " that was prepared: call step() on the optimizer that prepare() returned, and edit "
                                "parameters only after that step");
}

std::string FusedStep::describe() const {
  const auto* way = rule_ == UpdateRule::elementwise ? ", by its update()" : fused() ? ", fused" : ", by its own step";
  return class_name(*inner_) + way;
}

namespace {

/// A device that the program registered may lack these kernels; then the optimizer runs its own step().
bool device_has_kernels(const at::Tensor& parameter) {
  const auto key = c10::computeDispatchKey(parameter.scalar_type(), at::kStrided, parameter.device());
  for (const char* name : {"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_"})
    if (!c10::Dispatcher::singleton().findSchemaOrThrow(name, "").hasComputedKernelForDispatchKey(key)) return false;
  return true;
}

bool has_kernel(const at::Tensor& parameter) {
  const auto dtype = parameter.scalar_type();
  if (dtype != at::kDouble && dtype != at::kFloat && dtype != at::kHalf && dtype != at::kBFloat16) return false;
  return parameter.device().is_cpu() || parameter.device().is_cuda() || device_has_kernels(parameter);
}

}  // namespace

int64_t FusedStep::revision() const {
  int64_t sum = 0;
  for (const auto* owner : flat_parameters_) sum += owner->revision();
  return sum;
}

bool FusedStep::entries_current() const {
  if (revision() != revision_) return false;
  size_t at = 0;
  for (const auto& group : inner_->param_groups())
    for (const auto& parameter : group.params()) {
      if (at == entries_.size() || entries_[at].impl != parameter.unsafeGetTensorImpl()) return false;
      ++at;
    }
  return at == entries_.size();
}

void FusedStep::refresh_entries() {
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
  // The memory of states whose parameters have not moved is kept.
  std::unordered_map<const c10::TensorImpl*, const ParameterEntry*> known;
  for (const auto& entry : before) known[entry.impl] = &entry;
  for (auto& entry : entries_) {
    const auto found = known.find(entry.impl);
    if (found == known.end() || found->second->local != entry.local) continue;
    entry.states = found->second->states;
    entry.state_views = found->second->state_views;
  }
}

void FusedStep::fill_entry(ParameterEntry& entry) const {
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
  read_state(entry);
}

void FusedStep::read_state(ParameterEntry& entry) const {
  if (rule_ == UpdateRule::unfused) return;
  entry.state = find_state(entry);
  entry.step = entry.state ? updates_in(rule_, *entry.state) : 0;
}

lib::OptimizerParamState* FusedStep::find_state(const ParameterEntry& entry) const {
  const auto found = inner_->state().find(entry.impl);
  return found == inner_->state().end() ? nullptr : found->second.get();
}

bool FusedStep::views_are_ours(const ParameterEntry& entry) const {
  auto* found = find_state(entry);
  if (found != entry.state) return false;
  return !found || !entry.state_views[0].defined() || state_tensor(rule_, *found, 0).is_same(entry.state_views[0]);
}

/// Copies the gradient into the parameter's strides if they differ. Returns false if only the optimizer's own step can
/// use it.
bool FusedStep::align_gradient(ParameterEntry& entry) const {
  const auto& gradient = entry.impl->grad();
  const auto& parameter = entry.parameter;
  if (gradient.layout() != at::kStrided || gradient.scalar_type() != parameter.scalar_type() ||
      gradient.device() != parameter.device())
    return false;
  if (same_layout(gradient, parameter)) return true;
  entry.restrided_grad = at::empty_like(parameter).copy_(gradient);
  return true;
}

bool FusedStep::can_step_fused(ParameterEntry& entry) {
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
  if (!views_are_ours(entry)) plan_.reset();  // the state was loaded, or made by inner.step()
  return true;
}

bool FusedStep::can_step_fused() {
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

/// Reads LibTorch's state objects after a step that this class did not make.
void FusedStep::reload_states() {
  plan_.reset();
  for (auto& entry : entries_) read_state(entry);
}

}  // namespace muster::optim
