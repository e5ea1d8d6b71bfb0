#include "graph/recording.h"

#include <algorithm>
#include <cstring>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "graph/digest.h"
#include "graph/operator_traits.h"
#include "hook/watched_storage.h"
#include "muster/base/error.h"

namespace muster::graph {
namespace {

thread_local Recording* current_recording = nullptr;

using hook::storage_of;

/// What autograd holds in place of a saved tensor.
class SavedInRegion final : public torch::autograd::SavedVariableHooks {
 public:
  SavedInRegion(Recording& recording, std::shared_ptr<Region> region)
      : recording_(&recording), region_(std::move(region)) {}
  ~SavedInRegion() override {
    if (!recording_) region_->forget(number_);
  }

  void call_pack_hook(const at::Tensor& tensor) override { number_ = std::exchange(recording_, nullptr)->save(tensor); }
  at::Tensor call_unpack_hook() override { return Region::unpack(region_, number_); }

 private:
  Recording* recording_;  // until the tensor is packed
  std::shared_ptr<Region> region_;
  size_t number_ = 0;
};

thread_local OperatorLimit* current_limit = nullptr;

void record_operator(hook::Call& call) {
  if (current_recording) current_recording->run(call);
  else if (current_limit) current_limit->run(call);
  else call.proceed();
}

constexpr hook::Interceptor kRecorder{.name = "recorder",
                                      .priority = hook::Priority::recorder,
                                      .takes = nullptr,
                                      .run = record_operator,
                                      .disabled_by = kRecorderSwitch};

/// Which counter counts the tensor's version. LibTorch keeps the pointer private.
const void* counter_of(const at::Tensor& tensor) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*), "VariableVersion is one pointer to its counter");
  const void* counter = nullptr;
  // NOLINTNEXTLINE(bugprone-undefined-memory-manipulation): read only
  std::memcpy(&counter, &tensor.unsafeGetTensorImpl()->version_counter(), sizeof counter);
  return counter;
}

constexpr uint32_t kNoParameter = 0xffffffff;

/// True elsewhere than on a host, where programs do not write by pointers.
bool is_zero(const c10::StorageImpl& memory) {
  const auto* bytes = static_cast<const char*>(memory.data());
  if (!memory.device().is_cpu() || memory.nbytes() == 0 || !bytes) return true;
  return bytes[0] == 0 && std::memcmp(bytes, bytes + 1, memory.nbytes() - 1) == 0;
}

/// The regions whose backward has not come, and the memory that they hold. A memory may stand here that no region holds
/// any more.
struct LiveRegions {
  std::vector<std::weak_ptr<Region>> regions;
  ska::flat_hash_set<const c10::StorageImpl*> held;

  void add(const std::shared_ptr<Region>& region) {
    std::erase_if(regions, [](const auto& one) { return one.expired(); });
    if (regions.empty()) held.clear();
    regions.push_back(region);
  }
  void before_write(const c10::StorageImpl* memory) {
    if (held.erase(memory) == 0) return;
    for (const auto& weak : regions)
      if (const auto region = weak.lock()) region->keep_copy_of(memory);
  }
};
thread_local LiveRegions live_regions;

/// The tensor without its graph, which would hold the region in turn; the tensor itself where it has none.
at::Tensor held_form_of(const at::Tensor& tensor) {
  if (!tensor.requires_grad() || tensor.is_leaf()) return tensor;
  return tensor.has_storage() ? alias_of(tensor) : tensor.detach();
}

/// Whether the tensor's memory says what it holds: a dense one, and no number that a program wrote. Asked for each
/// argument, so the keys are compared at once.
bool is_recordable(const at::Tensor& tensor) {
  constexpr auto elsewhere =
      c10::sparse_ks | c10::sparse_csr_ks | c10::mkldnn_ks | c10::DispatchKeySet(c10::DispatchKey::NestedTensor);
  const auto* impl = tensor.unsafeGetTensorImpl();
  return tensor.defined() && !impl->key_set().has_any(elsewhere) && storage_of(tensor) && !impl->is_wrapped_number();
}

/// The inputs that an operator does not write by its schema, to be compared when it has run.
class UnchangedInputs {
 public:
  UnchangedInputs(const hook::Call& call, const OperatorTraits& traits) : op_(call.op()) {
    const auto arguments = call.arguments();
    for (uint32_t i = 0; i < arguments.size(); ++i)
      if (!traits.writes(i) && !traits.is_statistic(i))
        each_tensor(arguments[i], [&](int32_t, const at::Tensor& tensor) {
          if (const auto digest = digest_of(tensor)) inputs_.push_back({i, tensor, *digest});
        });
  }
  void check(const std::string& block) const {
    for (const auto& [argument, tensor, digest] : inputs_)
      if (digest_of(tensor) != digest)
        throw UsageError("MU588",
                         op_.schema().name() + " in block '" + block + "' changed its argument '" +
                             op_.schema().arguments()[argument].name() +
                             "' without saying so in its schema, so it cannot be replayed for backward: declare "
                             "the write there as Tensor(a!), or leave the block out of recompute.blocks");
  }

 private:
  struct Watched {
    uint32_t argument;
    at::Tensor tensor;
    uint64_t digest;
  };
  c10::OperatorHandle op_;
  std::vector<Watched> inputs_;
};

}  // namespace

void install_recorder() {
  static const std::string refusal = hook::install(kRecorder);
  if (!refusal.empty()) throw UsageError("MU587", "recompute needs the recorder of operators, but " + refusal);
  install_engine();
}

OperatorLimit::OperatorLimit() : outer_(current_limit), on_(hook::Priority::recorder, true) { current_limit = this; }
OperatorLimit::~OperatorLimit() { current_limit = outer_; }

void OperatorLimit::run(hook::Call& call) {
  if (reached_ && depth_ == 0) throw Reached();
  ++depth_;
  const auto ends = c10::make_scope_exit([&] { --depth_; });
  call.proceed();
}

/// What record() learns of an operator before it runs.
struct Recording::Noted {
  Noted(const c10::OperatorHandle& op, const OperatorTraits& traits, std::span<const c10::IValue> arguments)
      : operation(op), traits(traits), arguments(arguments) {}
  Operation operation;
  const OperatorTraits& traits;
  std::span<const c10::IValue> arguments;
  c10::SmallVector<const c10::StorageImpl*, 8> memory;  // of all inputs
  struct Write {
    at::Tensor tensor;
    ContentsId before;
  };
  c10::SmallVector<Write, 2> writes;
  int64_t copied_list = -1;       // the argument whose list was copied last
  bool writes_elsewhere = false;  // into memory that no recorded operator made
  bool reads_parameters = false, reads_others = false;
};

Recording::Recording(const Blocks& blocks)
    : blocks_(blocks), outer_(current_recording), on_(hook::Priority::recorder, true) {
  for (size_t i = 0; i < blocks.all().size(); ++i)
    for (const auto& parameter : blocks.all()[i].parameters) add_parameter(parameter, static_cast<int32_t>(i));
  for (const auto& parameter : blocks.others()) add_parameter(parameter, -1);
  current_recording = this;
}

Recording::~Recording() {
  current_recording = outer_;
  end_region();
  for (const auto block : seen_) blocks_.note_seen(block);
}

Recording* Recording::current() noexcept { return current_recording; }

void Recording::add_parameter(const at::Tensor& parameter, int32_t block) {
  if (!parameter.defined() || !parameter.has_storage()) return;
  const auto item = static_cast<int64_t>(parameter.itemsize()), begin = parameter.storage_offset() * item;
  auto& parameters = tables_->parameters;
  const auto number = static_cast<uint32_t>(parameters.size());
  auto [place, first] = tables_->places.emplace(storage_of(parameter), number);
  parameters.push_back({begin, begin + parameter.numel() * item, block, first ? kNoParameter : place->second});
  place->second = number;
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Recording::hooks() {
  return region_ && !in_backward() ? std::make_unique<SavedInRegion>(*this, region_) : nullptr;
}

size_t Recording::save(const at::Tensor& tensor) {
  SavedTensor saved;
  if (region_->cost()) tables_->saved_bytes += add_memory(tables_->saved_memory, tensor);
  if (region_->checked()) saved.digest = digest_of(tensor);
  if (auto* made = find(tensor); made && !made->unwritten) {
    saved.contents = made->contents;
    saved.layout = layout_of(*made, tensor);
    return region_->add(std::move(saved));
  }
  saved.version = version_of(tensor);
  const bool pending = operator_runs_ && is_recordable(tensor);
  if (!pending) saved.held = held_form_of(tensor);
  const auto number = region_->add(std::move(saved));
  if (pending) tables_->pending.emplace_back(number, tensor);
  return number;
}

void Recording::run(hook::Call& call) {
  const auto& traits = traits_of(call.op());
  // A backward that runs inside a forward does not belong to its blocks.
  if (traits.is(Trait::view) || in_backward()) return call.proceed();
  ++operation_number_;
  const auto arguments = torch::jit::last(call.stack(), traits.schema->arguments().size());
  if (!traits.is(Trait::sizes_only))
    for (const auto& argument : arguments) access(argument);
  const bool casts = traits.is(Trait::autocast) && !(call.keys() & c10::autocast_dispatch_keyset).empty();
  const bool has_parts = casts || traits.is(Trait::composite);
  if (!has_parts) before_writes({arguments.data(), arguments.size()}, traits);
  if (region_ && !has_parts) return record(call, {arguments.data(), arguments.size()}, traits);
  ++depth_;
  const auto ends = c10::make_scope_exit([&] { --depth_; });
  call.proceed();
}

/// What regions hold of memory that the operator is about to write. Memory that operators of this region have made is
/// not held.
void Recording::before_writes(std::span<const c10::IValue> arguments, const OperatorTraits& traits) {
  if ((traits.written | traits.statistics) == 0) return;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (traits.writes(i) || traits.is_statistic(i))
      each_tensor(arguments[i], [&](int32_t, const at::Tensor& tensor) {
        if (is_recordable(tensor)) live_regions.before_write(storage_of(tensor));
      });
}

void Recording::access(const c10::IValue& argument) {
  each_tensor(argument, [&](int32_t, const at::Tensor& tensor) {
    if (tensor.defined() && storage_of(tensor)) access(tensor);
  });
}

void Recording::access(const at::Tensor& tensor) {
  const auto found = tables_->places.find(storage_of(tensor));
  if (found == tables_->places.end()) return;
  const auto at = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  for (auto i = found->second; i != kNoParameter; i = tables_->parameters[i].next) {
    auto& parameter = tables_->parameters[i];
    if (at < parameter.begin || at >= parameter.end) continue;
    // Used by an earlier operator of this region: the block is called again.
    const bool again = depth_ == 0 && parameter.region == region_number_ && parameter.operation != operation_number_;
    if (parameter.block != block_ || (block_ >= 0 && again)) begin_region(parameter.block);
    if (depth_ == 0) {
      parameter.region = region_number_;
      parameter.operation = operation_number_;
    }
    return;
  }
}

void Recording::begin_region(int32_t block) {
  end_region();
  block_ = block;
  if (block < 0 || !blocks_.is_recomputed(static_cast<size_t>(block))) return;
  const auto index = static_cast<size_t>(block);
  region_ = std::make_shared<Region>(blocks_.all()[index].name, of_parameters_, blocks_.is_checked(index),
                                     blocks_.cost_to_measure(index));
  live_regions.add(region_);
  ++region_number_;
}

void Recording::end_region() {
  if (!region_) return;
  resolve_pending();
  const auto block = static_cast<size_t>(block_);
  region_->close();
  if (region_->cost()) {
    region_->cost()->add(measure_memory());
    seen_.insert(block);
  }
  tables_->made.clear();
  region_.reset();
}

/// Bytes of memory that is not in the set yet. Parameters are in memory anyway.
int64_t Recording::add_memory(ska::flat_hash_set<const c10::StorageImpl*>& all, const at::Tensor& tensor) const {
  if (!is_recordable(tensor) || tables_->places.count(storage_of(tensor))) return 0;
  return all.insert(storage_of(tensor)).second ? static_cast<int64_t>(storage_of(tensor)->nbytes()) : 0;
}

/// Of what autograd has saved in the region, and what the region holds instead.
BlockCost Recording::measure_memory() {
  ska::flat_hash_set<const c10::StorageImpl*> held;
  int64_t held_bytes = 0;
  region_->each_held([&](const at::Tensor& tensor) { held_bytes += add_memory(held, tensor); });
  tables_->saved_memory.clear();
  const auto kept = std::exchange(tables_->saved_bytes, 0);
  return {.kept_bytes = kept, .returned_bytes = kept - held_bytes};
}

Recording::Made* Recording::find(const at::Tensor& tensor) {
  if (!is_recordable(tensor)) return nullptr;
  for (auto* all : {&tables_->made, &tables_->made_of_parameters})
    if (auto* made = all->find(storage_of(tensor))) {
      if (made->zeros && !is_zero(*storage_of(tensor))) {  // filled by a pointer
        all->erase(storage_of(tensor));
        return nullptr;
      }
      return made->knows(tensor) ? made : nullptr;
    }
  return nullptr;
}

void Recording::forget(const at::Tensor& tensor) {
  tables_->made.erase(storage_of(tensor));
  tables_->made_of_parameters.erase(storage_of(tensor));
}

bool Recording::Made::knows(const at::Tensor& tensor) {
  const std::pair now(counter_of(tensor), version_of(tensor));
  if (version.first == now.first) return version == now;
  for (const auto& known : more_versions)
    if (known.first == now.first) return known == now;
  more_versions.push_back(now);
  return true;
}

void Recording::Made::written_by(const at::Tensor& tensor) {
  const std::pair now(counter_of(tensor), version_of(tensor));
  if (version.first == now.first) version = now;
  for (auto& known : more_versions)
    if (known.first == now.first) known = now;
}

uint32_t Recording::layout_of(Made& made, const at::Tensor& tensor) {
  auto& all = made.contents.of_parameters ? **of_parameters_ : region_->recorded();
  if (made.layout == Made::kNoLayout || !all.has_layout(made.layout, tensor)) made.layout = all.add_layout(tensor);
  return made.layout;
}

void Recording::record(hook::Call& call, std::span<const c10::IValue> arguments, const OperatorTraits& traits) {
  if (traits.is(Trait::opaque)) {  // its results are kept
    run_unseen(call);
    return resolve_pending();
  }
  Noted noted(call.op(), traits, arguments);
  noted.operation.grad_mode = at::GradMode::is_enabled();
  // Into the region's own list, whatever becomes of the operator: see finish().
  auto& recorded = region_->recorded();
  noted.operation.first_argument = static_cast<uint32_t>(recorded.arguments.size());
  noted.operation.argument_count = static_cast<uint32_t>(arguments.size());
  noted.operation.first_input = static_cast<uint32_t>(recorded.inputs.size());
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    if (argument.isTensor() && argument.toTensor().defined()) {
      recorded.arguments.emplace_back();  // note_input() puts the tensor there if it is to be held
      note_input(noted, i, -1, argument.toTensor());
      continue;
    }
    recorded.arguments.push_back(argument);
    each_tensor(argument, [&](int32_t element, const at::Tensor& tensor) { note_input(noted, i, element, tensor); });
  }
  noted.operation.input_count = static_cast<uint32_t>(recorded.inputs.size()) - noted.operation.first_input;
  if (traits.is(Trait::random)) {
    const auto& given = traits.generator >= 0 ? arguments[static_cast<size_t>(traits.generator)] : c10::IValue();
    noted.operation.generator =
        (given.isGenerator() ? given.toGenerator() : at::globalContext().defaultGenerator(device_of(arguments)))
            .clone();
  }
  std::optional<UnchangedInputs> unchanged;
  if (region_->checked()) unchanged.emplace(call, traits);
  bool recorded_it = false;
  const auto take_back = c10::make_scope_exit(
      [&, arguments_end = noted.operation.first_argument, inputs_end = noted.operation.first_input] {
        if (recorded_it) return;
        recorded.arguments.erase(recorded.arguments.begin() + arguments_end, recorded.arguments.end());
        recorded.inputs.erase(recorded.inputs.begin() + inputs_end, recorded.inputs.end());
      });
  run_unseen(call);
  if (unchanged) unchanged->check(region_->block());
  recorded_it = finish(noted, call.stack());
  resolve_pending();
}

void Recording::run_unseen(hook::Call& call) {
  operator_runs_ = true;
  const auto ends = c10::make_scope_exit([&] { operator_runs_ = false; });
  const hook::InterceptorGuard unseen(hook::Priority::recorder, false);
  call.proceed();
}

void Recording::note_input(Noted& noted, uint32_t argument, int32_t element, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const auto& traits = noted.traits;
  auto& operation = noted.operation;
  auto& recorded = region_->recorded();
  const bool written = traits.writes(argument);
  const auto* storage = storage_of(tensor);
  auto* made = find(tensor);
  if (made && made->unwritten) {
    const bool whole = tensor.nbytes() == storage->nbytes();
    if (written && traits.is(Trait::overwrites) && whole) {
      made->unwritten = false;
    } else {  // values may come by a pointer
      forget(tensor);
      made = nullptr;
    }
  }
  if (storage) noted.memory.push_back(storage);
  auto& value = recorded.arguments.back();
  const auto replace = [&](at::Tensor by) {
    if (element < 0) {
      value = std::move(by);
      return;
    }
    // The program's list is left alone: the first element that is replaced makes a copy.
    if (std::exchange(noted.copied_list, int64_t{argument}) != int64_t{argument}) value = value.toList().copy();
    value.toList().set(static_cast<size_t>(element), std::move(by));
  };
  if (made && traits.is_statistic(argument)) {  // written, whatever the schema says
    forget(tensor);
    made = nullptr;
  }
  if (made) {
    (made->contents.of_parameters ? noted.reads_parameters : noted.reads_others) = true;
    if (written) noted.writes.push_back({tensor, made->contents});
    recorded.inputs.push_back({argument, element, made->contents, {.layout = layout_of(*made, tensor)}});
    if (element >= 0) replace(at::Tensor());
    return;
  }
  const bool parameter = storage && tables_->places.find(storage) != tables_->places.end();
  (parameter ? noted.reads_parameters : noted.reads_others) = true;
  noted.writes_elsewhere |= written;
  if (traits.is_statistic(argument) &&
      (traits.training < 0 || noted.arguments[static_cast<size_t>(traits.training)].toBool()))
    operation.copied |= uint64_t{1} << argument;
  replace(held_form_of(tensor));
  if (is_recordable(tensor)) live_regions.held.insert(storage_of(tensor));
  recorded.inputs.push_back({argument, element, ContentsId(), {.version = version_of(tensor)}});
}

bool Recording::finish(Noted& noted, const torch::jit::Stack& stack) {
  const auto& traits = noted.traits;
  auto& operation = noted.operation;
  // An operator with a state of its own would find another one in a replay.
  if (traits.is(Trait::keeps_results) || noted.writes_elsewhere) {
    for (const auto& write : noted.writes) forget(write.tensor);
    return false;
  }
  const bool of_parameters =
      noted.reads_parameters && !noted.reads_others && !traits.is(Trait::random) && noted.writes.empty();
  auto& into = of_parameters ? **of_parameters_ : region_->recorded();
  const auto number = static_cast<uint32_t>(into.operations.size());
  operation.first_contents = static_cast<uint32_t>(into.contents.size());
  const bool kept = blocks_.keeps_results_of(traits.schema->name());
  uint32_t output = 0;
  for (const auto& value : torch::jit::last(stack, traits.schema->returns().size()))
    each_tensor(value, [&](int32_t, const at::Tensor& tensor) {
      const auto position = output++;
      if (!is_recordable(tensor)) return;
      auto* storage = storage_of(tensor);
      if (std::find(noted.memory.begin(), noted.memory.end(), storage) != noted.memory.end()) return;
      if ((of_parameters ? tables_->made : tables_->made_of_parameters).find(storage)) return;
      auto* made = (of_parameters ? tables_->made_of_parameters : tables_->made).add(storage);
      if (!made) return;  // two in one memory
      made->contents = add_contents(of_parameters, {number, position, 0, ContentsId::kNone});
      if (kept) {
        into.contents.back().kept = alias_of(tensor);
        into.contents.back().kept_version = version_of(tensor);
      }
      made->unwritten = traits.is(Trait::uninitialized);
      made->zeros = traits.is(Trait::zeros);
      made->version = {counter_of(tensor), version_of(tensor)};
    });
  for (const auto& write : noted.writes) {
    // Memory of parameters' casts: what it holds now is held.
    if (write.before.of_parameters) {
      forget(write.tensor);
      continue;
    }
    const auto memory = into.contents[write.before.index].memory;
    into.contents[memory].kept.reset();  // the memory holds something else now, so the operator is replayed after all
    auto* made = tables_->made.find(storage_of(write.tensor));
    made->zeros = false;
    made->contents = add_contents(/*of_parameters=*/false, {number, 0, memory, write.before.index});
    made->written_by(write.tensor);
  }
  if (traits.is(Trait::workspace))
    for (const auto& [number, tensor] : tables_->pending) region_->saved(number).digest.reset();
  operation.contents_count = static_cast<uint32_t>(into.contents.size()) - operation.first_contents;
  if (operation.contents_count == 0) return false;
  if (of_parameters) move_to_parameters(operation);
  into.operations.push_back(std::move(operation));
  return !of_parameters;
}

ContentsId Recording::add_contents(bool of_parameters, Contents&& contents) {
  auto& all = (of_parameters ? **of_parameters_ : region_->recorded()).contents;
  ContentsId id;
  id.index = static_cast<uint32_t>(all.size());
  id.of_parameters = of_parameters;
  if (contents.before == ContentsId::kNone) contents.memory = id.index;
  all.push_back(std::move(contents));
  return id;
}

void Recording::move_to_parameters(Operation& operation) {
  const auto& own = region_->recorded();
  const auto arguments = own.arguments_of(operation);
  const auto inputs = own.inputs_of(operation);
  auto& into = **of_parameters_;
  operation.first_argument = static_cast<uint32_t>(into.arguments.size());
  operation.first_input = static_cast<uint32_t>(into.inputs.size());
  into.arguments.insert(into.arguments.end(), arguments.begin(), arguments.end());
  into.inputs.insert(into.inputs.end(), inputs.begin(), inputs.end());
}

void Recording::resolve_pending() {
  for (const auto& [number, tensor] : tables_->pending) {
    auto& saved = region_->saved(number);
    if (saved.gone) continue;  // the operator has thrown
    auto* made = find(tensor);
    if (!made || made->unwritten) {
      saved.held = held_form_of(tensor);
      continue;
    }
    saved.contents = made->contents;
    saved.layout = layout_of(*made, tensor);
  }
  tables_->pending.clear();
}

}  // namespace muster::graph
