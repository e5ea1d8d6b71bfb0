#include "muster/runtime.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>

#include "base/log.h"
#include "comm/agreement.h"
#include "job_state.h"
#include "memory_owners.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/weights.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "parallel/sync_batch_norm.h"
#include "rank_placement.h"
#include "rank_votes.h"
#include "runtime/prepared_model.h"
#include "runtime/profile.h"
#include "runtime/random_state.h"
#include "runtime/saved_tensors.h"
#include "runtime_state.h"

namespace muster::runtime {

namespace {

constexpr int64_t kNoMore = -1;  // index that ends the stream

/// A tensor of this shape, with its own memory of one element.
at::Tensor placeholder(const at::Tensor& like, at::ScalarType dtype) {
  const auto element = at::empty(at::IntArrayRef(), at::TensorOptions().dtype(dtype));
  return like.numel() == 0 ? at::empty(like.sizes(), element.options()) : element.expand(like.sizes());
}

/// The weights of a model, for a file that one rank writes.
struct StreamedWeights {
  NamedTensors tensors;                              ///< all tensors, with a placeholder for each sharded parameter
  std::vector<TensorShard> shards;                   ///< shard of each sharded parameter
  std::unordered_map<const void*, size_t> shard_of;  ///< index in `shards`, by the placeholder's memory
};

StreamedWeights streamed_weights(const PreparedModel& model) {
  StreamedWeights weights;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> shown;
  for (auto& shard : model.managed->shards()) {
    const auto* parameter = shard.parameter.unsafeGetTensorImpl();
    if (shown.contains(parameter)) continue;
    const auto shape = placeholder(shard.parameter, shard.local.scalar_type());
    shown[parameter] = shape;
    if (shape.numel() > 0) weights.shard_of[shape.const_data_ptr()] = weights.shards.size();
    weights.shards.push_back(std::move(shard));
  }
  for (const auto& [name, tensor] : weights_of(*model.module)) {
    const auto cut = shown.find(tensor.unsafeGetTensorImpl());
    weights.tensors.emplace_back(
        name, cut != shown.end() ? cut->second : tensor.detach().to(model.managed->stored_dtype(tensor)));
  }
  return weights;
}

/// Calls `write` on the main rank with all tensors and the function that returns their values. Sharded tensors are
/// gathered one at a time: meanwhile the other ranks send their shards. Collective.
void stream_weights(const StreamedWeights& weights, const comm::Communicator& group,
                    const std::function<void(const NamedTensors&, const ValueOf&)>& write) {
  const auto of_main_rank = [&](int64_t next) {
    const auto number = at::tensor(next, at::kLong);
    group.internal("which weights come next").broadcast(number);
    return number.item<int64_t>();
  };
  const auto pieces = [&](size_t i) {
    const auto& shard = weights.shards.at(i);
    return group.internal("weights number " + std::to_string(i))
        .gather(shard.replica == 0 ? shard.local : shard.local.narrow(0, 0, 0));
  };
  if (group.rank() != 0) {
    for (auto next = of_main_rank(kNoMore); next != kNoMore; next = of_main_rank(kNoMore))
      pieces(static_cast<size_t>(next));
    return;
  }
  try {
    write(weights.tensors, [&](const at::Tensor& tensor) {
      const auto found = weights.shard_of.find(tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr);
      if (found == weights.shard_of.end()) return tensor;
      of_main_rank(static_cast<int64_t>(found->second));
      const auto& parameter = weights.shards[found->second].parameter;
      return at::cat(pieces(found->second)).as_strided(parameter.sizes(), parameter.strides());
    });
  } catch (...) {
    const auto failed = std::current_exception();
    try {
      of_main_rank(kNoMore);
    } catch (const std::exception&) {
      // The group is lost; the first error says more.
    }
    std::rethrow_exception(failed);
  }
  of_main_rank(kNoMore);
}

}  // namespace
}  // namespace muster::runtime

namespace muster {
namespace {

namespace fs = std::filesystem;

RemovableHandle add_hook(const std::shared_ptr<runtime::Saves::Hooks>& hooks, runtime::Saves::Hook hook) {
  const auto key = hooks->empty() ? 0 : hooks->rbegin()->first + 1;
  hooks->emplace(key, std::move(hook));
  return RemovableHandle([key, weak = std::weak_ptr(hooks)] {
    if (const auto alive = weak.lock()) alive->erase(key);
  });
}

/// The parts of an item that its filter keeps.
State filtered(State state, const std::function<bool(const std::string&, const State&)>& keep) {
  State::Map kept;
  for (auto& [name, value] : state.map())
    if (keep(name, value)) kept.emplace_back(name, std::move(value));
  return kept;
}

}  // namespace

Runtime::Runtime(const RuntimeOptions& options) : state_(std::make_shared<runtime::RuntimeState>(options)) {}

Runtime::~Runtime() {
  if (state_) state_->placement().leave_group();
}

Runtime::Runtime(Runtime&&) noexcept = default;

Runtime& Runtime::operator=(Runtime&&) noexcept = default;

// Ranks.

Logger Runtime::logger(std::string name) const { return Logger(std::move(name), group()); }

void Runtime::launch() { state_->launch(); }

int Runtime::rank() const { return state_->placement().cluster().rank; }

int Runtime::local_rank() const { return state_->placement().cluster().local_rank; }

int Runtime::node_rank() const { return state_->placement().cluster().node_rank; }

int Runtime::world_size() const { return state_->placement().cluster().world_size; }

c10::Device Runtime::device() const { return state_->placement().device(); }

const comm::Communicator& Runtime::group() const { return state_->placement().group(); }

void Runtime::barrier() const { group().barrier(); }

void Runtime::print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void Runtime::set_trigger() { state_->votes().set_trigger(true); }

bool Runtime::check_trigger() {
  const bool any = comm::any_rank(group(), "check_trigger", state_->votes().trigger());
  if (any) state_->votes().set_trigger(false);
  return any;
}

void Runtime::catch_signals() { state_->votes().catch_signals(); }

int Runtime::signal_received() {
  comm::CoalescedAllReduce scalars(group(), "signal_received");
  scalars.add(state_->votes().received(), comm::ReduceOp::max);
  scalars.run();
  return static_cast<int>(scalars.result(0));
}

runtime::TrialGroup Runtime::trial_group() {
  if (world_size() == 1) return {[] {}, [] {}, [] {}};
  const auto whole = group();
  // Traces of an attempt on a rank that ran out of memory must not end the group of the program.
  return {[state = state_, whole] { state->use_group(whole.internal("a try of a batch size").duplicate()); },
          [state = state_] { state->placement().group().abort("another rank gave up this batch size"); },
          [state = state_, whole] { state->use_group(whole); }};
}

std::ostream& Runtime::out() const { return state_->out(&Runtime::print_line); }

std::string Runtime::plan() const { return state_->plan(); }

// Training.

void Runtime::backward(const at::Tensor& loss, BackwardOptions options) {
  runtime::with_error_context([this](c10::Error& error) { state_->add_error_context(error); },
                              [&] { state_->gradient_processing().backward(loss, options.retain_graph); });
}

std::shared_ptr<runtime::Accumulation> Runtime::next_micro_batch() { return state_->next_micro_batch(); }

bool Runtime::sync_gradients() const { return state_->accumulation()->sync(); }

int Runtime::gradient_accumulation_steps() const { return state_->accumulation()->num_steps(); }

void Runtime::set_gradient_accumulation_steps(int steps) { state_->accumulation()->set_num_steps(steps); }

precision::AutocastScope Runtime::autocast(const AutocastOptions& options) const {
  return precision::AutocastScope(state_->precision(), state_->placement().device().type(), options);
}

void Runtime::unscale_gradients() { state_->gradient_processing().unscale_gradients(nullptr); }

void Runtime::unscale_gradients(const Optimizer& optimizer) {
  optimizer.prepared()->join_other_ranks();
  optimizer.prepared()->unscale();
}

bool Runtime::optimizer_step_was_skipped() const {
  return state_->placement().launched() && state_->gradient_processing().optimizer_step_was_skipped();
}

GradNorm Runtime::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipOptions options) {
  return state_->gradient_processing().clip_grad_norm(parameters, max_norm, options);
}

GradNorms Runtime::clip_grad_norm_(const Optimizer& optimizer, const PerGroup<double>& max_norm, ClipOptions options) {
  const auto& groups = Optimizer(optimizer).param_groups();
  const auto bounds = optim::clip_bounds(max_norm, groups.size());
  GradNorms norms;
  for (size_t g = 0; g < groups.size(); ++g) norms.push_back(clip_grad_norm_(groups[g].params(), bounds[g], options));
  return norms;
}

void Runtime::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  state_->gradient_processing().clip_grad_value(parameters, clip_value);
}

GradNorm Runtime::clip_gradients_of(const Optimizer& optimizer, const ClipGradientsOptions& options) {
  if (options.clip_val.has_value() == options.max_norm.has_value())
    throw ConfigError("MU179", "clip_gradients wants exactly one of clip_val and max_norm");
  std::vector<at::Tensor> parameters;
  for (const auto& group : Optimizer(optimizer).param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  if (options.max_norm)
    return clip_grad_norm_(parameters, *options.max_norm,
                           {.error_if_nonfinite = options.error_if_nonfinite, .norm_type = options.norm_type});
  clip_grad_value_(parameters, *options.clip_val);
  return 0;
}

void Runtime::set_seed(uint64_t seed, bool per_rank) { state_->set_seed(seed, per_rank); }

void Runtime::record_profile(const std::function<void()>& f, const ProfileOptions& options) const {
  runtime::record_profile(f, *state_->trace(), group(), options);
}

int64_t Runtime::convert_batch_norms(torch::nn::Module& module) const {
  return muster::convert_sync_batchnorm(module, group());
}

void Runtime::run_joined(std::vector<std::shared_ptr<parallel::ManagedModel>> models, const std::function<void()>& f,
                         const UnevenInputsOptions& options) {
  state_->join_uneven_inputs(std::move(models), f, options);
}

void Runtime::forget_freed() { state_->forget_freed(); }

const std::vector<std::shared_ptr<FabricCallback>>& Runtime::callbacks() const { return state_->callbacks(); }

int64_t Runtime::first_epoch(int64_t count) {
  state_->note_epochs(count);
  auto& left = state_->saves().epochs_done;
  const auto first = std::min(left, std::max<int64_t>(count, 0));
  left -= first;
  return first;
}

void Runtime::synchronize(const SyncedGenerators& kinds, std::vector<at::Generator> generators) const {
  runtime::synchronize_rng_states(group(), device(), kinds, std::move(generators));
}

// State.

fs::path Runtime::save_state(const fs::path& folder, const SaveStateOptions& options) {
  auto& saves = state_->saves();
  wait_for_save();
  const auto& project = state_->project();
  const WriteCheckpointOptions how{.durability = options.durability,
                                   .numbered = folder.empty(),
                                   .storage = project.storage,
                                   .total_limit = project.total_limit};
  const auto where = folder.empty() ? runtime::numbered_folder(project) : folder;
  auto job = runtime::save_job(state_->stateful_objects());
  runtime::call_hooks(*saves.before_save, job.shared, where);
  if (!options.asynchronous) return write_checkpoint(job, where, state_->placement().group(), how);
  if (!saves.writer || saves.writer_options != how) {
    saves.writer = std::make_unique<CheckpointWriter>(state_->placement().group(), how);
    saves.writer_options = how;
  }
  saves.writer->start(job, where);
  return where;
}

fs::path Runtime::wait_for_save() { return state_->saves().wait(); }

void Runtime::load_state(const fs::path& folder, const LoadStateOptions& options) {
  auto& saves = state_->saves();
  wait_for_save();
  runtime::AtomicLoad load;
  std::vector<std::string> notes;
  const auto where = folder.empty() ? runtime::latest_of_all(state_->placement().group(), state_->project()) : folder;
  const auto checkpoint = runtime::open_on_all_ranks(*state_, where);
  runtime::together(state_->placement().group(), load, [&] {
    auto shared = checkpoint.shared();
    runtime::call_hooks(*saves.before_load, shared, where);
    notes = runtime::load_job(state_->stateful_objects(),
                              {.checkpoint = checkpoint, .shared = shared, .strict = options.strict}, load);
  });
  state_->note_loaded_epoch();
  for (const auto& note : notes) log::warning("load_state: " + note);
}

RemovableHandle Runtime::register_save_state_pre_hook(runtime::Saves::Hook hook) {
  return add_hook(state_->saves().before_save, std::move(hook));
}

RemovableHandle Runtime::register_load_state_pre_hook(runtime::Saves::Hook hook) {
  return add_hook(state_->saves().before_load, std::move(hook));
}

void Runtime::keep_object(SavedItem object) { state_->saves().objects.push_back(std::move(object)); }

void Runtime::save(const fs::path& folder, const std::vector<SavedItem>& items, const SaveFilter& filter) {
  wait_for_save();
  for (const auto& [name, _] : filter)
    if (std::ranges::find(items, name, &SavedItem::name) == items.end())
      throw ConfigError("MU246", "a filter was given for \"" + name + "\", which is not among the things to save");
  comm::require_same_device_operations(state_->placement().group());
  CheckpointContents contents{.shared = State::Map{}};
  for (const auto& item : items) {
    auto state = item.save(contents.shards);
    if (const auto found = filter.find(item.name()); found != filter.end())
      state = filtered(std::move(state), found->second);
    contents.shared.set(item.name(), std::move(state));
  }
  write_checkpoint(contents, folder, state_->placement().group(), {.storage = state_->project().storage});
}

State Runtime::load(const fs::path& folder) { return load(folder, {}); }

State Runtime::load(const fs::path& folder, const std::vector<SavedItem>& items, const LoadStateOptions& options) {
  wait_for_save();
  runtime::AtomicLoad load;
  State rest = State::Map{};
  const auto checkpoint = runtime::open_on_all_ranks(*state_, folder);
  runtime::together(state_->placement().group(), load, [&] {
    const auto shared = checkpoint.shared();
    for (const auto& item : items) {
      const auto* found = shared.find(item.name());
      if (found) item.load(*found, {&checkpoint, options.strict}, load);
      else if (options.strict) shared.at(item.name());  // throws with the names that exist
    }
    for (const auto& [name, state] : shared.map())
      if (std::ranges::find(items, name, &SavedItem::name) == items.end()) rest.set(name, state);
  });
  return rest;
}

void Runtime::with_full_params(const runtime::PreparedModel& model, const std::function<void()>& f,
                               const FullParamsOptions& options) {
  if (auto* sharded = model.managed->sharded_parameters()) sharded->summon_full_params(f, options);
  else f();
}

void Runtime::write_model(const runtime::PreparedModel& model, const std::filesystem::path& folder,
                          const SaveWeightsOptions& options) const {
  comm::require_same_device_operations(state_->placement().group());
  const auto weights = runtime::streamed_weights(model);
  // Only the main rank writes; all ranks learn the result.
  runtime::first_here(state_->placement().group(), /*first=*/true, [&] {
    runtime::stream_weights(weights, state_->placement().group(),
                            [&](const NamedTensors& tensors, const ValueOf& value_of) {
                              save_weights(tensors, folder, options, value_of);
                            });
  });
}

IncompatibleKeys Runtime::load_weights(const std::shared_ptr<torch::nn::Module>& module, const fs::path& path,
                                       const LoadStateDictOptions& options) const {
  return runtime::load_weights(*state_, module, path, options);
}

namespace runtime {

RuntimeState& state_of(const Runtime& runtime) { return *runtime.state_; }

const ClusterEnvironment& cluster_of(const RuntimeState& state) { return state.placement().cluster(); }

std::optional<StepRows> step_rows(const RuntimeState& state) { return state.step_rows(); }

}  // namespace runtime

}  // namespace muster
