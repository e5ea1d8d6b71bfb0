#include "graph/region.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include "graph/digest.h"
#include "graph/operator_traits.h"
#include "graph/reused.h"
#include "hook/gradient_hooks.h"
#include "hook/interceptor.h"
#include "hook/operator_flops.h"
#include "hook/watched_storage.h"
#include "muster/base/error.h"

namespace muster::graph {
namespace {

std::atomic<int64_t> recorded_operators{0}, replayed_operators{0}, replays{0};

/// The region whose replayed tensors this thread has, and for which backward. Weak: regions belong to the graphs that
/// they were recorded for.
thread_local std::weak_ptr<Region> replayed_here;
thread_local int64_t replayed_for = -1;

/// The time of one operator, until its device has finished.
class DeviceClock {
 public:
  explicit DeviceClock(at::Device device) : device_(device), begin_(Clock::now()) {}
  double seconds_until_done() const {
    if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
    return std::chrono::duration<double>(Clock::now() - begin_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  at::Device device_;
  Clock::time_point begin_;
};

/// Runs an operator that draws from its device's default generator and does not take another. Nothing else may draw
/// meanwhile; the state of the generator is put back.
void run_random(const Operation& operation, torch::jit::Stack& stack) {
  static base::Mutex one_at_a_time;
  const base::Lock lock(one_at_a_time);
  auto generator = at::globalContext().defaultGenerator(operation.generator.device());
  const auto today = generator.get_state();
  const auto put_back = c10::make_scope_exit([&] { generator.set_state(today); });
  generator.set_state(operation.generator.get_state());
  operation.op.callBoxed(&stack);
}

}  // namespace

ReplayCounts replay_counts() noexcept { return {recorded_operators, replayed_operators, replays}; }

uint32_t Operations::add_layout(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  layouts.push_back({.offset = tensor.storage_offset(),
                     .first_dim = used_dims,
                     .dims = static_cast<uint32_t>(sizes.size()),
                     .dtype = tensor.scalar_type(),
                     .conjugate = tensor.is_conj(),
                     .negative = tensor.is_neg()});
  const auto end = used_dims + static_cast<uint32_t>(2 * sizes.size());
  if (dims.size() < end) dims.resize(std::max<size_t>(end, 2 * dims.size()));
  auto* to = dims.data() + used_dims;
  for (size_t i = 0; i < sizes.size(); ++i) {
    to[i] = sizes[i];
    to[sizes.size() + i] = strides[i];
  }
  used_dims = end;
  return static_cast<uint32_t>(layouts.size() - 1);
}

bool Operations::has_layout(uint32_t layout, const at::Tensor& tensor) const {
  const auto& one = layouts[layout];
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  if (one.dims != sizes.size()) return false;
  const auto *known_sizes = dims.data() + one.first_dim, *known_strides = known_sizes + one.dims;
  for (uint32_t i = 0; i < one.dims; ++i)
    if (sizes[i] != known_sizes[i] || strides[i] != known_strides[i]) return false;
  return one.offset == tensor.storage_offset() && one.dtype == tensor.scalar_type() &&
         one.conjugate == tensor.is_conj() && one.negative == tensor.is_neg();
}

at::Tensor Operations::in_memory_of(const at::Tensor& base, uint32_t layout) const {
  const auto& one = layouts[layout];
  const auto impl = base.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
  if (base.scalar_type() != one.dtype)
    impl->set_storage_and_dtype(impl->storage(), c10::scalarTypeToTypeMeta(one.dtype));
  const auto* sizes = dims.data() + one.first_dim;
  impl->set_sizes_and_strides({sizes, one.dims}, {sizes + one.dims, one.dims}, one.offset);
  if (one.conjugate || impl->is_conj()) impl->_set_conj(one.conjugate);
  if (one.negative || impl->is_neg()) impl->_set_neg(one.negative);
  return at::Tensor(impl);
}

at::Device device_of(std::span<const c10::IValue> arguments) {
  for (const auto& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().device();
    if (argument.isDevice()) return argument.toDevice();
  }
  return at::kCPU;
}

at::Tensor alias_of(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
}

uint32_t version_of(const at::Tensor& tensor) noexcept {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

/// One replay: which operators run, and what they have made so far.
class Region::Replay {
 public:
  explicit Replay(Region& region) : region_(region) {
    own().start(region.lists_->recorded);
    of_parameters().start(**region.of_parameters_);
    state_->next.assign(region.lists_->saved.size(), kNone);
    for (uint32_t i = 0; i < region.lists_->saved.size(); ++i) {
      const auto& saved = region.lists_->saved[i];
      if (saved.gone || !saved.contents.known() || saved.replayed.defined()) continue;
      auto& waiting = part_of(saved.contents).contents[saved.contents.index].waiting;
      state_->next[i] = std::exchange(waiting, i);
      need(saved.contents);
    }
    // Operators read what earlier ones made, and of_parameters() reads nothing of own().
    for (auto* part : {&own(), &of_parameters()})
      for (auto i = part->operation_needed.size(); i-- > 0;) need_operation(*part, i);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  /// What run() has measured.
  const BlockCost& cost() const noexcept { return cost_; }
  bool needs_contents(size_t i) { return own().contents[i].needed; }
  bool needs_operation(size_t i) { return own().operation_needed[i]; }

  void run() {
    const hook::ReplayScope replay;
    const hook::InterceptorGuard unrecorded(hook::Priority::recorder, false);
    // Operators were recorded below autocast, with their casts.
    const c10::impl::ExcludeDispatchKeyGuard uncast(c10::autocast_dispatch_keyset);
    for (auto* part : {&of_parameters(), &own()}) {
      part->made.resize(part->recorded->contents.size());
      start_from_kept(*part);
    }
    for (auto* part : {&of_parameters(), &own()})
      for (size_t i = 0; i < part->operation_needed.size(); ++i)
        if (part->operation_needed[i]) run(*part, part->recorded->operations[i]);
  }

 private:
  static constexpr uint32_t kNone = ContentsId::kNone;

  /// Of contents, or of the memory whose first contents they are.
  struct Use {
    uint32_t waiting = kNone;    // the last saved tensor that waits for these contents
    uint32_t last_contents = 0;  // of this memory that are needed
    uint32_t uses = 0;           // operators and saved tensors that still need this memory
    bool needed = false;         // these contents
  };
  struct Part {
    const Operations* recorded = nullptr;
    std::vector<char> operation_needed;
    std::vector<Use> contents;     // by contents
    std::vector<at::Tensor> made;  // by a memory's first contents

    void start(const Operations& operations) {
      recorded = &operations;
      operation_needed.assign(operations.operations.size(), 0);
      contents.assign(operations.contents.size(), {});
    }
  };
  struct State {
    Part own, of_parameters;
    std::vector<uint32_t> next;  // by saved tensor: another one that waits for the same contents

    void clear() {
      own.made.clear();
      of_parameters.made.clear();
    }
  };

  Part& own() { return state_->own; }
  Part& of_parameters() { return state_->of_parameters; }
  Part& part_of(ContentsId contents) { return contents.of_parameters ? of_parameters() : own(); }

  void need(ContentsId contents) { need(part_of(contents), contents.index); }
  void need(Part& part, uint32_t contents) {
    const auto memory = part.recorded->contents[contents].memory;
    ++part.contents[memory].uses;
    part.contents[contents].needed = true;
    part.contents[memory].last_contents = std::max(part.contents[memory].last_contents, contents);
  }

  /// Whether something needs the operator is known when all later ones are through.
  void need_operation(Part& part, size_t number) {
    const auto& operation = part.recorded->operations[number];
    const auto& contents = part.recorded->contents;
    const auto begin = operation.first_contents, end = begin + operation.contents_count;
    bool needed = false;
    for (auto i = begin; i < end; ++i) needed |= part.contents[i].needed && !contents[i].kept.defined();
    if (!needed) return;
    part.operation_needed[number] = 1;
    for (const auto& input : part.recorded->inputs_of(operation))
      if (input.contents.known()) need(input.contents);
    // All that an operator writes advances together.
    for (auto i = begin; i < end; ++i)
      if (contents[i].before != kNone) need(part, i);
  }

  void start_from_kept(Part& part) {
    const auto& all = part.recorded->contents;
    for (uint32_t i = 0; i < all.size(); ++i)
      if (part.contents[i].needed && all[i].kept.defined()) {
        region_.check_version(all[i].kept, all[i].kept_version, &part.recorded->operations[all[i].operation]);
        part.made[i] = all[i].kept;
        hand_over(part, i);
      }
  }

  void run(Part& part, const Operation& operation) {
    try {
      auto stack = arguments(part, operation);
      // Below autograd, so that nothing is saved, with the grad mode of the first run: kernels look at it, such as
      // oneDNN's of LSTMs, which keeps a workspace for backward.
      const auto& traits = traits_of(operation.op);
      const bool only = traits.is(Trait::autograd_only);
      const at::AutoGradMode grad_mode(operation.grad_mode && !only);
      const c10::impl::ExcludeDispatchKeyGuard below(only ? c10::DispatchKeySet()
                                                          : c10::autograd_dispatch_keyset_with_ADInplaceOrView);
      const auto clock = measure(operation, stack);
      if (!operation.generator.defined()) {
        operation.op.callBoxed(&stack);
      } else if (const auto at = traits.generator; at >= 0) {
        stack[static_cast<size_t>(at)] = operation.generator.clone();
        operation.op.callBoxed(&stack);
      } else {
        run_random(operation, stack);
      }
      if (clock) cost_.seconds += clock->seconds_until_done();
      replayed_operators.fetch_add(1, std::memory_order_relaxed);
      take(part, operation, stack);
    } catch (c10::Error& error) {
      error.add_context("in " + operation.op.schema().name() + ", replayed to make activations of block '" +
                        region_.block_ + "' again for backward");
      throw;
    }
  }

  /// nullopt unless the region is measured.
  std::optional<DeviceClock> measure(const Operation& operation, const torch::jit::Stack& arguments) {
    if (!region_.cost_) return std::nullopt;
    cost_.flops += hook::flops_of(operation.op.schema().name(), c10::ArrayRef(arguments.data(), arguments.size()));
    return DeviceClock(device_of(arguments));
  }

  torch::jit::Stack arguments(const Part& part, const Operation& operation) {
    const auto recorded = part.recorded->arguments_of(operation);
    torch::jit::Stack stack(recorded.begin(), recorded.end());
    for (const auto& input : part.recorded->inputs_of(operation)) {
      auto& argument = stack[input.argument];
      const auto set = [&](at::Tensor tensor) {
        if (input.element < 0) {
          argument = std::move(tensor);
          return;
        }
        if (argument.is(recorded[input.argument])) argument = argument.toList().copy();
        argument.toList().set(static_cast<size_t>(input.element), std::move(tensor));
      };
      if (input.contents.known()) {
        const auto& from = part_of(input.contents);
        const auto& base = from.made[from.recorded->contents[input.contents.index].memory];
        set(from.recorded->in_memory_of(base, input.layout));
        continue;
      }
      const auto held =
          input.element < 0 ? argument.toTensor() : argument.toListRef()[static_cast<size_t>(input.element)].toTensor();
      // It may have been made on another stream, which could use its memory again while this one still reads it.
      if (held.defined() && !held.device().is_cpu() && held.has_storage() && !hook::has_key(held)) {
        const c10::impl::VirtualGuardImpl device(held.device().type());
        device.recordDataPtrOnStream(held.storage().data_ptr(), device.getStream(held.device()));
      }
      if (operation.copied >> input.argument & 1) set(held.clone());
      else region_.check_version(held, input.version, &operation);
    }
    return stack;
  }

  void take(Part& part, const Operation& operation, const torch::jit::Stack& results) {
    uint32_t output = 0, next = operation.first_contents;
    const auto end = operation.first_contents + operation.contents_count;
    const auto& all = part.recorded->contents;
    for (const auto& value : results)
      each_tensor(value, [&](int32_t, const at::Tensor& tensor) {
        if (next < end && all[next].before == kNone && all[next].output == output) {
          const auto& contents = all[next];
          if (!contents.kept.defined() && part.contents[contents.memory].uses > 0) part.made[contents.memory] = tensor;
          ++next;
        }
        ++output;
      });
    for (auto index = operation.first_contents; index < end; ++index) {
      if (all[index].kept.defined()) continue;
      hand_over(part, index);
      if (all[index].before != kNone) release(part, all[index].memory);
    }
    for (const auto& input : part.recorded->inputs_of(operation))
      if (input.contents.known()) {
        auto& from = part_of(input.contents);
        release(from, from.recorded->contents[input.contents.index].memory);
      }
  }

  /// Gives these contents to the saved tensors that wait for them.
  void hand_over(Part& part, uint32_t index) {
    const auto memory = part.recorded->contents[index].memory;
    for (auto i = part.contents[index].waiting; i != kNone; i = state_->next[i]) {
      auto& saved = region_.lists_->saved[i];
      auto tensor = part.recorded->in_memory_of(part.made[memory], saved.layout);
      if (saved.digest && digest_of(tensor) != saved.digest)
        throw UsageError("MU588",
                         part.recorded->operations[part.recorded->contents[index].operation].op.schema().name() +
                             " in block '" + region_.block_ +
                             "' gave other values when it was replayed for backward: it depends on more than "
                             "its arguments, or they were changed without an operator. Name it in "
                             "recompute.keep, or leave the block out of recompute.blocks");
      // A later operator of this replay writes over it.
      saved.replayed = part.contents[memory].last_contents == index ? std::move(tensor) : tensor.clone();
      release(part, memory);
    }
  }

  static void release(Part& part, uint32_t memory) {
    if (--part.contents[memory].uses == 0) part.made[memory].reset();
  }

  Region& region_;
  BlockCost cost_;
  Reused<State> state_;
};

Region::Region(std::string block, std::shared_ptr<Reused<Operations>> of_parameters, bool checked,
               std::shared_ptr<MeasuredCost> cost)
    : block_(std::move(block)), checked_(checked), cost_(std::move(cost)), of_parameters_(std::move(of_parameters)) {}

size_t Region::add(SavedTensor saved) {
  auto& all = lists_->saved;
  if (all.size() == all.capacity()) {  // forget() may be called from other threads, for tensors that would move now
    const base::Lock lock(mutex_);
    all.reserve(std::max<size_t>(16, 2 * all.size()));
  }
  all.push_back(std::move(saved));
  return all.size() - 1;
}

void Region::forget(size_t number) {
  at::Tensor held, replayed;  // freed after the lock is released
  const base::Lock lock(mutex_);
  auto& saved = lists_->saved[number];
  saved.gone = true;
  held = std::move(saved.held);
  replayed = std::move(saved.replayed);
}

void Region::keep_copy_of(const c10::StorageImpl* memory) {
  const base::Lock lock(mutex_);
  at::Storage copy;  // of the whole memory, so that all strides hold
  const auto moved = [&](const at::Tensor& held) {
    if (!copy) {
      const auto bytes = static_cast<int64_t>(memory->nbytes());
      const auto all = at::empty({0}, held.options().dtype(at::kByte)).set_(held.storage(), 0, {bytes}, {1});
      copy = all.clone().storage();
    }
    const auto impl = held.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
    impl->set_storage_keep_dtype(copy);
    return at::Tensor(impl);
  };
  const auto lies_there = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.layout() == at::kStrided && !hook::has_key(tensor) && tensor.has_storage() &&
           hook::storage_of(tensor) == memory;
  };
  const at::NoGradGuard no_grad;
  const hook::InterceptorGuard unrecorded(hook::Priority::recorder, false);
  auto& recorded = lists_->recorded;
  for (const auto& operation : recorded.operations)
    for (uint32_t i = 0; i < operation.input_count; ++i) {
      auto& input = recorded.inputs[operation.first_input + i];
      auto& argument = recorded.arguments[operation.first_argument + input.argument];
      if (input.contents.known() || argument.isNone() || operation.copied >> input.argument & 1) continue;
      const auto element = static_cast<size_t>(std::max(input.element, 0));
      const auto held = input.element < 0 ? argument.toTensor() : argument.toListRef()[element].toTensor();
      if (!lies_there(held) || version_of(held) != input.version) continue;
      if (input.element < 0) argument = moved(held);
      else argument.toList().set(element, moved(held));
      input.version = 0;
    }
  for (auto& contents : recorded.contents)
    if (lies_there(contents.kept) && version_of(contents.kept) == contents.kept_version) {
      contents.kept = moved(contents.kept);
      contents.kept_version = 0;
    }
}

void Region::each_held(c10::function_ref<void(const at::Tensor&)> f) const {
  const auto& recorded = lists_->recorded;
  for (const auto& argument : recorded.arguments)
    each_tensor(argument, [&](int32_t, const at::Tensor& tensor) { f(tensor); });
  for (const auto& contents : recorded.contents) f(contents.kept);
  for (const auto& saved : lists_->saved) f(saved.held);
}

void Region::close() {
  const base::Lock lock(mutex_);
  Replay replay(*this);
  auto& recorded = lists_->recorded;
  auto& operations = recorded.operations;
  auto& contents = recorded.contents;
  for (size_t i = 0; i < contents.size(); ++i)
    if (!replay.needs_contents(i)) contents[i].kept.reset();
  for (size_t i = 0; i < operations.size(); ++i) {
    if (replay.needs_operation(i)) continue;
    for (auto& argument : recorded.arguments_of(operations[i])) argument = {};
    operations[i].generator = {};
  }
  recorded_operators.fetch_add(static_cast<int64_t>(operations.size()), std::memory_order_relaxed);
}

at::Tensor Region::unpack(const std::shared_ptr<Region>& region, size_t number) {
  const auto before = replayed_here.lock();
  const auto backward = hook::current_backward();
  if (before != region || backward != replayed_for) {
    if (before && before != region) before->leave();
    replayed_here = region;
    replayed_for = backward;
    if (backward >= 0)
      hook::at_end_of_backward([last = std::weak_ptr(region)] {
        if (const auto left = last.lock()) left->leave();
      });
  }
  return region->unpack(number);
}

at::Tensor Region::unpack(size_t number) {
  const base::Lock lock(mutex_);
  auto& saved = lists_->saved[number];
  if (saved.held.defined()) {
    check_version(saved.held, saved.version, nullptr);
    return saved.held;
  }
  if (!saved.replayed.defined()) {
    Replay replay(*this);
    replay.run();
    if (const auto cost = std::exchange(cost_, nullptr)) cost->add(replay.cost());
    replays.fetch_add(1, std::memory_order_relaxed);
    replayed_on_.reset();
  }
  if (!saved.replayed.device().is_cpu()) order_after_replay(saved.replayed);
  return saved.replayed;
}

/// A replay runs on the stream of the node that asks first. One on another stream waits for it.
void Region::order_after_replay(const at::Tensor& replayed) {
  const c10::impl::VirtualGuardImpl device(replayed.device().type());
  const auto stream = device.getStream(replayed.device());
  if (!replayed_on_) {
    replayed_on_ = stream;
    replay_ended_.emplace(device.type());
    replay_ended_->record(stream);
  } else if (*replayed_on_ != stream) {
    replay_ended_->block(stream);
    device.recordDataPtrOnStream(replayed.storage().data_ptr(), stream);
  }
}

void Region::leave() {
  const base::Lock lock(mutex_);
  for (auto& saved : lists_->saved) saved.replayed.reset();
}

void Region::check_version(const at::Tensor& held, uint32_t version, const Operation* reader) const {
  const auto now = version_of(held);
  if (now == version) return;
  throw UsageError("MU586", "a tensor that block '" + block_ + "' " +
                                (reader ? "gave to " + reader->op.schema().name() : std::string("saved for backward")) +
                                " was changed in place before backward: it has version " + std::to_string(now) +
                                " and had " + std::to_string(version) +
                                "; change a copy of it, or leave this block out of recompute");
}

}  // namespace muster::graph
