#include "runtime_state.h"

#include <unordered_set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>
#include <torch/utils.h>

#include "base/log.h"
#include "base/text.h"
#include "base/variables.h"
#include "comm/agreement.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/processor.h"
#include "graph/blocks.h"
#include "memory_owners.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/checkpoint/weights.h"
#include "muster/data/sample_split.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "muster/parallel/wrap.h"
#include "muster/precision/options.h"
#include "muster/precision/plugin.h"
#include "muster/runtime/batch_size_search.h"
#include "muster/runtime/detail/values.h"
#include "muster/strategy/options.h"
#include "options/program_options.h"
#include "parallel/join.h"
#include "param_groups.h"
#include "runtime/saved_tensors.h"
#include "tree/submodules.h"

namespace muster::runtime {
namespace {

// The runtime's part of a custom precision policy; these functions do nothing for a built-in precision.
// Why: docs/decisions/0086-a-precision-policy-of-the-programs-own.md.

[[noreturn]] void refuse_dtype(const PrecisionPlugin& custom, at::ScalarType dtype, const Strategy& strategy,
                               const std::string& why) {
  throw ConfigError("MU311", formatted("the precision policy '{}' wants gradients summed in {}, but the strategy is "
                                       "'{}', which {}; let reduce_dtype() return nothing, or choose 'fsdp' or 'zero2'",
                                       custom.name(), c10::toString(dtype), strategy.name(), why));
}

/// Replicated training sums gradients in the dtype of the parameters, or in a half dtype through a communication hook.
Strategy replicated_with(const Strategy& strategy, const PrecisionPlugin& custom, at::ScalarType dtype) {
  const auto* given = std::get_if<DDP>(&strategy.options());
  auto options = given ? *given : DDP();
  if (dtype == custom.parameter_dtype() || options.comm_hook != "none" || options.custom_hook) return strategy;
  if (dtype != at::kBFloat16 && dtype != at::kHalf)
    refuse_dtype(custom, dtype, strategy, "sums in the dtype of the parameters, in BFloat16 or in Half");
  if (strategy.name() == "ddp_find_unused_parameters_true") options.find_unused_parameters = true;
  options.comm_hook = dtype == at::kHalf ? "fp16" : "bf16";
  return options;
}

/// "mine (given by the program; parameters BFloat16, computed in BFloat16)": the policy's name and its own description.
std::string describe(const Precision& precision) {
  const auto* custom = precision.custom().get();
  if (!custom) return std::string(precision.name());
  auto text = formatted("{} (given by the program; parameters {}, computed in {}", custom->name(),
                        c10::toString(custom->parameter_dtype()), c10::toString(custom->compute_dtype()));
  if (const auto dtype = custom->autocast_dtype()) text += formatted(", autocast to {}", c10::toString(*dtype));
  if (const auto dtype = custom->reduce_dtype()) text += formatted(", gradients summed in {}", c10::toString(*dtype));
  if (custom->scales_losses()) text += ", losses scaled";
  return text + ")";
}

/// The strategy with the policy's reduce_dtype(), where its options set none.
/// Throws: ConfigError (MU311) if it cannot sum gradients in that dtype.
Strategy with_reduce_dtype(const Strategy& strategy, const Precision& precision, int world_size) {
  const auto* custom = precision.custom().get();
  const auto dtype = custom ? custom->reduce_dtype() : std::nullopt;
  if (!dtype || world_size == 1) return strategy;
  if (strategy.custom()) refuse_dtype(*custom, *dtype, strategy, "is the program's own and sums gradients as it does");
  const auto* sharding = strategy.sharding();
  if (!sharding || sharding->stage == ShardStage::none) return replicated_with(strategy, *custom, *dtype);
  auto options = *sharding;
  if (options.reduce_dtype.empty()) options.reduce_dtype = *dtype;
  return options;
}

/// Throws: ConfigError (MU312) on every rank if ranks have different policies. Collective: ranks with a custom policy.
void require_same_precision(const comm::Communicator& group, const Precision& precision) {
  if (!precision.custom().get() || group.size() == 1) return;
  const auto texts =
      group.internal("comparing the precision policies of the program").all_gather_bytes(describe(precision));
  if (const auto found = comm::first_difference(texts))
    throw ConfigError("MU312",
                      formatted("ranks have different precisions: rank 0 has {}, rank {} has {}; give the same "
                                "policy on every rank",
                                found->first, found->rank, found->other));
}

/// What "auto" stands for among the blocks to recompute: the units of sharded training; else modules marked by wrap(),
/// or repeated ones.
tree::NamedModules automatic_blocks(const torch::nn::Module& module, parallel::ManagedModel& managed) {
  const auto* sharded = managed.sharded_parameters();
  const auto units = sharded ? sharded->unit_names() : std::vector<std::string>();
  tree::NamedModules blocks;
  for (const auto& place : tree::submodules_of(module))
    if (sharded ? std::ranges::find(units, place.name) != units.end() : parallel::is_unit(*place.module))
      blocks.emplace(place.module.get(), place.name);
  return blocks.empty() ? tree::repeated_modules(module) : blocks;
}

/// nullptr if nothing is recomputed. Collective.
std::shared_ptr<graph::Blocks> recomputed_blocks(const torch::nn::Module& module, parallel::ManagedModel& managed,
                                                 const RecomputeOptions& options, const comm::Communicator& group) {
  std::shared_ptr<graph::Blocks> blocks;
  std::vector<std::string> lines{"nothing"};
  if (options.on()) {
    graph::install_recorder();
    blocks = std::make_shared<graph::Blocks>(module, options, automatic_blocks(module, managed));
    lines = blocks->describe();
    for (const auto& block : blocks->all()) lines.push_back("block " + block.name);
  }
  // A rank that makes other activations again would gather other units in backward.
  comm::require_same_lines(group, lines,
                           {.remedy = "give every rank the same option recompute",
                            .what = "ranks have prepared a model with different blocks to recompute"});
  return blocks;
}

/// Chooses the blocks that are within the budget, by the largest costs that any rank has measured. Collective.
void choose_recomputed(graph::Blocks& blocks, const comm::Communicator& group) {
  const auto count = static_cast<int64_t>(blocks.all().size());
  const auto figures = at::empty({count, 4}, at::kDouble);
  auto rows = figures.accessor<double, 2>();
  for (int64_t i = 0; i < count; ++i) {
    const auto cost = blocks.cost(static_cast<size_t>(i));
    rows[i][0] = static_cast<double>(cost.kept_bytes);
    rows[i][1] = static_cast<double>(cost.returned_bytes);
    rows[i][2] = static_cast<double>(cost.flops);
    rows[i][3] = cost.seconds;
  }
  group.internal("choosing blocks to recompute").all_reduce(figures, comm::ReduceOp::max);
  std::vector<graph::BlockCost> costs;
  for (int64_t i = 0; i < count; ++i)
    costs.push_back({.kept_bytes = static_cast<int64_t>(rows[i][0]),
                     .returned_bytes = static_cast<int64_t>(rows[i][1]),
                     .flops = static_cast<int64_t>(rows[i][2]),
                     .seconds = rows[i][3]});
  blocks.choose(costs);
}

/// A line of plan(): how much of this rank's state an asynchronous save would now stage in pinned memory.
/// Why: docs/decisions/0145-checkpoints-through-pinned-memory.md.
std::string describe_save_staging(const std::vector<std::shared_ptr<PreparedModel>>& models,
                                  const PreparedOptimizers& optimizers, int rank) {
  std::uint64_t bytes = 0;
  const bool writes_whole = rank == 0;  // rank 0 writes tensors that are not sharded
  for (const auto& model : models) {
    std::unordered_set<const c10::TensorImpl*> cut;
    for (const auto& shard : model->managed->shards())
      if (cut.insert(shard.parameter.unsafeGetTensorImpl()).second && shard.replica == 0) bytes += shard.local.nbytes();
    for (const auto& [name, tensor] : weights_of(*model->module))
      if (writes_whole && !cut.contains(tensor.unsafeGetTensorImpl())) bytes += tensor.nbytes();
  }
  for (const auto& entry : optimizers) {
    const auto optimizer = entry.lock();
    if (!optimizer) continue;
    std::vector<TensorShard> shards;
    const auto state = optimizer->state_dict("", shards);
    for (const auto& shard : shards) bytes += shard.local.nbytes();
    if (writes_whole)
      for_each_tensor(state, [&](const std::string&, const at::Tensor& tensor) { bytes += tensor.nbytes(); });
  }
  return formatted(
      "asynchronous saves: {} of this rank's state is staged in pinned memory, of which 5 % more at most "
      "is taken",
      size_text(bytes));
}

/// The device of a module that may not have been moved yet.
c10::DeviceType device_type_of(const torch::nn::Module& module, c10::Device otherwise) {
  for (const auto& parameter : module.parameters()) return parameter.device().type();
  for (const auto& buffer : module.buffers()) return buffer.device().type();
  return otherwise.type();
}

/// Gradients that exist already follow their parameters, as in Python's Module.to().
void convert_gradients(const torch::nn::Module& module) {
  for (auto& parameter : module.parameters())
    if (const auto& gradient = parameter.unsafeGetTensorImpl()->grad(); gradient.defined())
      parameter.mutable_grad() = gradient.to(parameter.device(), parameter.scalar_type());
}

}  // namespace

RuntimeState::RuntimeState(const RuntimeOptions& options)
    : options_(resolved(options, Environment::of_process())), placement_(options_),
      registry_(std::make_shared<ModelRegistry>()) {
  registry_->reductions().carry(votes_);
  choose_kernels(options_, placement_.device(), placement_.cluster().is_main());
  const int wanted = placement_.processes_wanted();
  if (placement_.cluster().launcher != LauncherKind::none || wanted <= 1) launch();
}

void RuntimeState::launch() {
  if (placement_.launched()) return;
  const auto& group = placement_.connect();
  const auto& cluster = placement_.cluster();
  const auto device = placement_.device();
  if (cluster.world_size > 1)
    group.observe([trace = trace_](const comm::OperationEvent& event) {
      if (trace->on()) trace->add({std::string(event.operation), "collectives", event.start, event.end, event.bytes});
    });
  require_same_precision(group, options_.precision);
  host_tuning_.choose_cores(options_, group, device);
  strategy_ = make_strategy(with_reduce_dtype(options_.strategy, options_.precision, cluster.world_size),
                            cluster.world_size, cluster.local_world_size);
  accumulation_ = std::make_shared<Accumulation>(options_.gradient_accumulation, group);
  joined_ = std::make_shared<JoinedSteps>(registry_);
  gradient_processing_.emplace(accumulation_, joined_, registry_, optimizers_, trace_, scales_losses());
  host_tuning_.resolve_precision(options_, cluster, device);
  host_tuning_.choose_memory(options_, cluster, device);
  if (!options_.synced_generators.cpu) generators_.emplace(group);
  if (!cluster.note.empty() && cluster.is_main()) log::warning(cluster.note);
  const auto variables = Environment::of_process();
  notes_ = given_option_notes(variables);
  for (const auto& warning : {unknown_variables(variables), misspelt_variables(variables)})
    if (!warning.empty() && cluster.is_main()) log::warning(warning);
  placement_.finish_launch();
}

std::ostream& RuntimeState::out(void (*print)(const std::string&)) {
  if (!output_) output_ = std::make_unique<MainOutput>([this] { return placement_.cluster().is_main(); }, print);
  return *output_;
}

std::shared_ptr<Accumulation> RuntimeState::next_micro_batch() {
  placement_.require_launched();
  accumulation_->begin(loaders_.micro_batch(placement_.cluster().world_size),
                       [weak = weak_from_this()](double correction) {
                         if (const auto parts = weak.lock())
                           parts->gradient_processing_->scale_all_gradients(correction);
                       });
  return accumulation_;
}

void RuntimeState::use_group(const comm::Communicator& group) {
  placement_.use_group(group);
  accumulation_->use_group(group);
}

StatefulObjects RuntimeState::stateful_objects() {
  placement_.require_launched();
  StatefulObjects job{.accumulation = accumulation_,
                      .device = placement_.device(),
                      .group = placement_.group(),
                      .loaders = loaders_.saved(),
                      .models = registry_->models(),
                      .objects = saves_.objects,
                      .optimizers = {},
                      .schedulers = saves_.schedulers()};
  for (const auto& entry : *optimizers_)
    if (auto optimizer = entry.lock()) job.optimizers.push_back(std::move(optimizer));
  return job;
}

void RuntimeState::note_loaded_epoch() {
  const auto loaders = loaders_.saved();
  saves_.epochs_done = loaders.empty() ? 0 : loaders.front()->epoch();
}

void RuntimeState::forget_freed() {
  std::erase_if(*optimizers_, [](const auto& optimizer) { return optimizer.expired(); });
  if (accumulation_) accumulation_->reset();
  empty_device_cache();
}

GradientProcessing& RuntimeState::gradient_processing() {
  placement_.require_launched();
  return *gradient_processing_;
}

const std::shared_ptr<Accumulation>& RuntimeState::accumulation() const {
  placement_.require_launched();
  return accumulation_;
}

std::shared_ptr<PreparedModel> RuntimeState::prepare_model(const std::shared_ptr<torch::nn::Module>& module,
                                                           bool moves) {
  placement_.require_launched();
  if (!module) throw UsageError("MU173", "prepare was given an empty module holder; make the module first");
  if (auto known = registry_->find(*module)) return known;
  registry_->require_unshared(*module);
  precision::PrecisionPolicy(options_.precision).convert_module(*module, options_.fp32_modules);
  if (moves) module->to(placement_.device());
  convert_gradients(*module);
  auto managed = strategy_->setup_module(*module, placement_.group());
  if (!managed)
    throw UsageError("MU341", "the program's strategy '" + std::string(strategy_->name()) + "' made no model of " +
                                  module->name() + "; let setup_module() return a ManagedModel");
  // Only now: memory that a sharded model used while it was built must first return to the system.
  if (host_tuning_.keeps_memory()) device::keep_freed_memory();
  const auto* sharded = managed->sharded_parameters();
  const precision::PrecisionPolicy policy(options_.precision,
                                          sharded ? sharded->forward_casts() : precision::ForwardCasts{});
  auto model = std::make_shared<PreparedModel>(PreparedModel{module, std::move(managed), policy,
                                                             device_type_of(*module, placement_.device()), trace_,
                                                             grad_norm_of(*module, weak_from_this()), error_context()});
  const auto* sharding = options_.strategy.sharding();
  const bool by_strategy = sharding && !options_.recompute.on();
  model->recomputed = recomputed_blocks(*module, *model->managed,
                                        by_strategy ? sharding->activation_checkpointing.options() : options_.recompute,
                                        placement_.group());
  if (model->recomputed)
    model->choose_recomputed = [blocks = model->recomputed, group = placement_.group()] {
      choose_recomputed(*blocks, group);
    };
  registry_->add(model);
  gradient_processing_->for_each_optimizer([](PreparedOptimizer& optimizer) { optimizer.bind_models(); });
  notes_.push_back("model " + module->name() + ": " + model->managed->describe());
  const auto memory = device::describe_memory(placement_.device());
  if (placement_.cluster().is_main() && (model->managed->sharded() || !memory.empty()))
    log::info(notes_.back(), memory.empty() ? "" : "; ", memory);
  call_each(options_.callbacks, &FabricCallback::on_after_setup, *module);
  return model;
}

Optimizer RuntimeState::prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  placement_.require_launched();
  for (const auto& entry : *optimizers_)
    if (auto known = entry.lock(); known && known->owner() == optimizer) return Optimizer(known);
  placement_.report().step(0);
  const auto after_step = [callbacks = options_.callbacks, report = placement_.report(), steps = int64_t{0},
                           weak = weak_from_this()](Optimizer& handle) mutable {
    report.step(++steps);
    if (const auto parts = weak.lock()) parts->watch_generators();
    call_each(callbacks, &FabricCallback::on_after_optimizer_step, handle);
  };
  const auto before_reduction = [weak = weak_from_this()] {
    if (const auto parts = weak.lock()) parts->gradient_processing_->rescale_to_loss_scale();
  };
  OptimizerContext context{.accumulation = accumulation_,
                           .joined = joined_,
                           .after_step = after_step,
                           .before_reduction = before_reduction,
                           .add_error_context = error_context(),
                           .group = placement_.group(),
                           .optimizers = optimizers_,
                           .registry = registry_,
                           .scaling = scales_losses() ? std::optional(options_.grad_scaler) : std::nullopt,
                           .needs_found_inf_at_once = !options_.callbacks.empty(),
                           .trace = trace_};
  require_equal_options(placement_.group(), *optimizer);
  auto prepared = std::make_shared<PreparedOptimizer>(std::move(optimizer), std::move(context));
  prepared->bind_models();
  optimizers_->push_back(prepared);
  return Optimizer(std::move(prepared));
}

void RuntimeState::add_error_context(c10::Error& error) const {
  add_memory_owners(error, placement_.device(), registry_->models(), *optimizers_);
}

std::function<void(c10::Error&)> RuntimeState::error_context() {
  return [weak = weak_from_this()](c10::Error& error) {
    if (const auto state = weak.lock()) state->add_error_context(error);
  };
}

SchedulerContext RuntimeState::scheduler_context() {
  placement_.require_launched();
  return {.optimizers = optimizers_,
          .accumulation = accumulation_,
          .group = placement_.group(),
          .with_optimizer = options_.step_scheduler_with_optimizer,
          .saves = saves_,
          .loop_steps = [weak = weak_from_this()] {
            const auto state = weak.lock();
            return state ? state->loop_steps() : std::nullopt;
          }};
}

std::optional<SchedulerContext::LoopSteps> RuntimeState::loop_steps() const {
  const auto batches = loaders_.batches();
  if (!epochs_ || !batches) return {};
  return SchedulerContext::LoopSteps{.epochs = *epochs_, .in_epoch = accumulation_->scheduler_steps_of(*batches)};
}

data::SampleSplit RuntimeState::split_of(const data::LoaderState& loader) {
  placement_.require_launched();
  const auto& options = loader.options();
  uint64_t seed = options.seed.value_or(seed_.value_or(at::detail::getDefaultCPUGenerator().current_seed()));
  if (!options.seed) seed = broadcast(placement_.group().internal("the seed of a loader"), seed, 0);
  return {.device = placement_.device(),
          .dispatch_batches = options_.dispatch_batches,
          .even_batches = options.even_batches && options_.even_batches,
          .group = placement_.cluster().world_size > 1 ? std::make_shared<const comm::Communicator>(placement_.group())
                                                       : nullptr,
          .rank = placement_.cluster().rank,
          .seed = seed,
          .split_batches = options.split_batches || options_.split_batches,
          .synced_generators = options_.synced_generators,
          .trace = trace_,
          .world_size = placement_.cluster().world_size};
}

std::shared_ptr<data::LoaderState> RuntimeState::distribute(const data::LoaderState& loader,
                                                            const data::SampleSplit& split,
                                                            std::optional<int64_t> place) {
  auto prepared = loader.distributed(split);
  loaders_.add(prepared, place);
  return prepared;
}

bool RuntimeState::scales_losses() const {
  return precision::scales_losses(options_.precision) && options_.grad_scaler.enabled;
}

void RuntimeState::set_seed(uint64_t seed, bool per_rank) {
  seed_ = seed;
  torch::manual_seed(seed + (per_rank ? static_cast<uint64_t>(placement_.cluster().rank) : 0));
}

void RuntimeState::watch_generators() {
  if (!generators_ || !generators_->note_step()) return;
  const std::string note = log::str(
      "MU070",
      ": all ranks draw the same random numbers, since their generators were in one state at the first step, so "
      "noise and dropout repeat from rank to rank; if that is not meant, call set_seed(seed, /*per_rank=*/true), or "
      "torch::manual_seed(seed + rank), after prepare");
  notes_.push_back("random numbers: " + note);
  if (placement_.cluster().is_main()) log::warning(note);
}

std::string RuntimeState::plan() const {
  auto text = placement_.describe();
  text += formatted("precision: {}\n", describe(options_.precision));
  if (strategy_) text += formatted("strategy: {} ({})\n", strategy_->name(), strategy_->reason());
  text += formatted("threads: {} a rank\n", at::get_num_threads());
  if (const auto memory = device::describe_memory(placement_.device()); !memory.empty())
    text += "memory: " + memory + "\n";
  for (const auto& note : host_tuning_.notes()) text += note + "\n";
  if (!placement_.device().is_cpu() && !registry_->models().empty())
    text += describe_save_staging(registry_->models(), *optimizers_, placement_.cluster().rank) + "\n";
  for (const auto& note : notes_) text += note + "\n";
  for (const auto& model : registry_->models())
    if (model->recomputed)
      for (const auto& line : model->recomputed->describe()) text += line + "\n";
  return text;
}

std::shared_ptr<PreparedModel> prepare_model(RuntimeState& state, const std::shared_ptr<torch::nn::Module>& module,
                                             bool moves) {
  return with_error_context([&](c10::Error& error) { state.add_error_context(error); },
                            [&] { return state.prepare_model(module, moves); });
}

Optimizer prepare_optimizer(RuntimeState& state, std::shared_ptr<torch::optim::Optimizer> optimizer) {
  return state.prepare_optimizer(std::move(optimizer));
}

std::shared_ptr<data::LoaderState> prepare_loader(RuntimeState& state, const data::LoaderState& loader, bool moves) {
  auto split = state.split_of(loader);
  if (!moves) split.device = at::kCPU;
  return state.distribute(loader, split, /*place=*/0);
}

void RuntimeState::broadcast_training_states(int rank) {
  const bool own = placement_.group().rank() == rank;
  const auto follow = [&](const State& mine, const auto& load) {
    const auto state = broadcast_object(placement_.group().internal("training states after uneven inputs"),
                                        own ? mine : State(), rank);
    if (!own) load(state);
  };
  gradient_processing_->for_each_optimizer([&](PreparedOptimizer& optimizer) {
    std::vector<TensorShard> cut;
    const auto mine = optimizer.state_dict("", cut);
    if (cut.empty()) follow(mine, [&](const State& state) { optimizer.prepare_load(state, TensorReader(nullptr))(); });
    else  // it was stepped here, on this rank's shards
      follow(group_options(optimizer.inner()),
             [&](const State& state) { set_group_options(optimizer.inner(), state); });
  });
  follow(joined_->gradient_states(), [&](const State& states) { joined_->adopt_gradient_states(states); });
  for (const auto& scheduler : saves_.schedulers())
    if (!scheduler->sealed())
      follow(scheduler->state_dict(), [&](const State& state) { scheduler->load_state_dict(state); });
}

void RuntimeState::join_uneven_inputs(std::vector<std::shared_ptr<parallel::ManagedModel>> models,
                                      const std::function<void()>& f, const UnevenInputsOptions& options) {
  placement_.require_launched();
  if (accumulation_->joined())
    throw UsageError("MU585", "join_uneven_inputs was called inside itself: end the first loop before the next one");
  for (const auto& model : registry_->models())
    if (placement_.cluster().world_size > 1 && model->recomputed && !model->recomputed->has_choice())
      throw UsageError("MU589",
                       "join_uneven_inputs was called before ranks have agreed which blocks are within "
                       "recompute.budget_mib, which they do in the second step, and a rank without a batch could not "
                       "take part: train two steps before it, or choose blocks by name, `every` or `keep`");
  // The loop may use a sharded model that it does not train, and every rank must hear of its gathers.
  const bool all = models.empty();
  for (const auto& model : registry_->models()) {
    auto* joinable = model->managed->joinable();
    const bool named = std::ranges::find(models, model->managed) != models.end();
    if (all || (!named && joinable && joinable->needs_steps())) models.push_back(model->managed);
  }
  const auto before = loaders_.set_even(options.even_batches);
  if (placement_.cluster().world_size > 1)
    accumulation_->set_joined(options.divide_by_initial_world_size ? Joined::by_all_ranks : Joined::by_active_ranks);
  const auto restore = c10::make_scope_exit([&] {
    accumulation_->set_joined(Joined::no);
    registry_->start_steps(0);  // ranks have made different numbers of steps
    for (const auto& [loader, even] : before) loader->set_even_batches(even);
  });
  const auto batches = [&] {
    f();
    if (placement_.cluster().world_size > 1 && accumulation_->unfinished())
      throw UsageError("MU118",
                       "a loop in join_uneven_inputs ended inside a window of accumulated gradients, so that these "
                       "would reach no step: go on to the end of the window, and leave sync_with_dataloader on");
    accumulation_->count_last();  // for a window that only other ranks continue
  };
  parallel::join_uneven_inputs(placement_.group(), models, batches,
                               {.divide_by_initial_world_size = options.divide_by_initial_world_size},
                               {.open = [this](parallel::JoinSession* session) { joined_->set_session(session); },
                                .before_gradients = [this] { gradient_processing_->rescale_to_loss_scale(); },
                                .follow = [this](const State& step) { gradient_processing_->follow(step); },
                                .then =
                                    [this](int last_rank) {
                                      comm::require_same_device_operations(placement_.group());
                                      broadcast_training_states(last_rank);
                                    }});
}

}  // namespace muster::runtime
