#include "muster/data/detail/loader_state.h"

#include <ATen/Context.h>

#include "base/text.h"
#include "data/batch_order.h"
#include "data/pass.h"
#include "data/random.h"
#include "device/device.h"
#include "device/processor.h"
#include "hook/random_scope.h"
#include "muster/base/error.h"
#include "muster/comm/communicator.h"
#include "muster/data/sample_split.h"

// Why: docs/decisions/0030-the-loader.md.
namespace muster::data {
namespace {

uint64_t seed_of(const DataLoaderOptions& options, const SampleSplit& split) {
  if (options.seed) return *options.seed;
  return split.seed ? *split.seed : at::globalContext().defaultGenerator(at::kCPU).current_seed();
}

void refuse_if(bool wrong, const std::string& what) {
  if (wrong) throw ConfigError("MU107", what);
}

}  // namespace

struct LoaderState::Impl {
  std::chrono::steady_clock::time_point began;
  device::Stream copying;  // stream of copies; one for all passes, so that its memory is reused
  std::shared_ptr<BatchMaker> maker;
  DataLoaderOptions options;
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
  std::optional<AnySampler> sampler;
  uint64_t seed = 0;
  SampleSplit split;

  /// Throws: ConfigError (MU107) for options that are invalid or contradict each other.
  void check() const;
  BatchSplit batch_split(int64_t size, int64_t offset = 0) const {
    return {.batch_size = options.batch_size,
            .dispatch = split.world_size > 1 && dispatches(),
            .drop_last = options.drop_last,
            .even = split.even_batches.value_or(options.even_batches),
            .filler = split.filler_batches,
            .offset = offset,
            .rank = split.rank,
            .size = size,
            .split_batches = split.split_batches.value_or(options.split_batches),
            .world_size = split.world_size};
  }
  bool dispatches() const { return split.dispatch_batches.value_or(options.dispatch_batches); }
  BatchSampler* batch_sampler() const { return sampler ? sampler->batch_sampler().get() : nullptr; }
  const ReadyBatchEnds* ready() const { return maker->ready_batches(); }
  /// Whether batches are distributed as a whole: ready-made batches, or those of a batch sampler.
  bool by_batch() const { return batch_sampler() || ready(); }
  int64_t whole_batches() const {
    return ready() ? static_cast<int64_t>(ready()->ends().size()) : batch_sampler()->size();
  }
  const char* order_name() const {
    if (ready()) return options.shuffle ? "shuffled ready-made batches" : "ready-made batches";
    if (sampler) return batch_sampler() ? "batch sampler" : "sampler";
    return streams() ? "stream" : options.shuffle ? "shuffled" : "sequential";
  }
  bool streams() const { return maker->stream() != nullptr; }
  /// Samples in a pass; -1 if unknown.
  int64_t samples() const { return sampler && sampler->sampler() ? sampler->sampler()->size() : maker->size(); }
  /// How samples are distributed, or whole batches.
  SplitPlan plan(int64_t offset) const {
    if (by_batch()) return plan_of_batches(batch_split(whole_batches(), offset));
    return SplitPlan(batch_split(std::max<int64_t>(0, samples()), offset));
  }
  SplitPlan plan() const { return plan(progress->offset); }
  bool sized() const { return by_batch() || samples() >= 0; }
  /// The unit of positions over all ranks is a sample or a batch: how many of them a step and a pass have.
  int64_t step() const { return plan().step_size(); }
  int64_t total() const { return by_batch() ? whole_batches() : samples(); }
  EpochRandom random() const { return {options.rank_in_sample_seed ? mix(seed, split.rank) : seed, progress->epoch}; }
  void seek(int64_t batch, int64_t offset) const;
  std::shared_ptr<BatchOrder> order() const;
  /// The indices of the samples that this plan distributes, from batch `first` on.
  std::shared_ptr<IndexOrder> indices(const SplitPlan& split_plan, int64_t first) const;
};

std::shared_ptr<BatchOrder> LoaderState::Impl::order() const {
  const int64_t epoch = progress->epoch, first = progress->next_start, offset = progress->next_offset;
  if (streams())
    return std::make_shared<StreamOrder>(
        maker,
        StreamOrder::Settings{
            .split = batch_split(0, offset), .first_step = first, .random = random(), .state = progress->next_state});
  if (by_batch()) {
    std::shared_ptr<BatchSampler> batches;
    if (ready()) batches = std::make_shared<ReadyBatchSampler>(*ready(), options.shuffle, seed, epoch);
    else batches = sampler->batch_sampler();
    return std::make_shared<BatchSampledOrder>(plan(offset), std::move(batches), maker->size(), epoch, first);
  }
  const auto parts = batch_split(samples(), offset);
  if (parts.dispatch)
    return std::make_shared<DispatchedOrder>(
        parts, first, [&](const SplitPlan& whole, int64_t start) { return indices(whole, start); });
  return indices(SplitPlan(parts), first);
}

std::shared_ptr<IndexOrder> LoaderState::Impl::indices(const SplitPlan& split_plan, int64_t first) const {
  if (sampler)
    return std::make_shared<SampledOrder>(split_plan, sampler->sampler(), maker->size(), progress->epoch, first);
  return std::make_shared<ComputedOrder>(split_plan, options.shuffle, seed, progress->epoch);
}

void LoaderState::Impl::check() const {
  refuse_if(options.workers < 0 || options.workers > 1024,
            "a loader's workers is " + std::to_string(options.workers) + "; give 0 to 1024");
  refuse_if(options.prefetch < 1, "a loader's prefetch is " + std::to_string(options.prefetch) + "; give at least 1");
  refuse_if(options.shuffle && sampler,
            "a loader has a sampler and shuffle = true; the sampler decides the order, so leave shuffle out");
  refuse_if(batch_sampler() && options.batch_size != 1,
            "a loader has a batch sampler, which decides the batches; leave batch_size out");
  refuse_if(ready() && sampler,
            "a loader of ready-made batches has a sampler, but its order is that of the list; sort the list, or set "
            "shuffle = true");
  refuse_if(ready() && options.batch_size != 1, "a loader of ready-made batches has a batch_size of " +
                                                    std::to_string(options.batch_size) + "; leave batch_size out");
  refuse_if(
      streams() && (options.shuffle || sampler),
      "a loader of a stream has a sampler or shuffle = true, but a stream has no indices; shuffle inside the stream");
  refuse_if(dispatches() && by_batch(),
            "a loader with a batch sampler, or of ready-made batches, has dispatch_batches = true, but rank 0 cuts "
            "what it reads into equal parts, and these batches stay whole; leave dispatch_batches out");
  refuse_if(dispatches() && split.world_size > 1 && !split.group,
            "dispatch_batches needs the group of ranks that rank 0 reads for; prepare the loader, or give SampleSplit "
            "a group");
}

LoaderState::LoaderState(std::shared_ptr<BatchMaker> maker, std::optional<AnySampler> sampler,
                         const DataLoaderOptions& options, const SampleSplit* given)
    : impl_(std::make_unique<Impl>()) {
  const SampleSplit split = given ? *given : SampleSplit();
  impl_->maker = std::move(maker);
  impl_->options = options;
  impl_->sampler = std::move(sampler);
  impl_->seed = seed_of(options, split);
  impl_->split = split;
  impl_->progress->warns_of_repeats = split.rank == 0 && split.world_size > 1 && !split.filler_batches;
  impl_->check();
  if (split.in_order) impl_->options.shuffle = false;
  impl_->plan().batches();
  // This takes some 20 ms once per process, and the first batch should not wait for it.
  hook::install_random_key();
  device::initialize_vector_math();
}

LoaderState::~LoaderState() = default;

std::shared_ptr<LoaderState> LoaderState::distributed(const SampleSplit& split) const {
  auto state = std::make_shared<LoaderState>(impl_->maker, impl_->sampler, impl_->options, &split);
  if (split.group && split.world_size > 1) {
    const std::string ranks_must_share = state->describe_order() + ", " + std::to_string(epoch());
    state->impl_->seed = shared_seed(*split.group, ranks_must_share, state->impl_->seed);
  }
  const auto& from = *impl_->progress;
  state->load_position({.dataset = from.next_state,
                        .epoch = from.epoch,
                        .samples = from.next_offset + from.next_start * impl_->step(),
                        .seed = state->impl_->seed});
  return state;
}

std::unique_ptr<Pass> LoaderState::begin_pass() {
  auto& p = *impl_;
  if (p.progress->running) p.progress->running->end();
  p.began = std::chrono::steady_clock::now();
  if (p.split.group && p.split.world_size > 1)
    synchronize_generators(*p.split.group, p.split.device, p.split.synced_generators);
  if (!p.copying) p.copying = device::stream_from_pool(p.split.device);
  PassPlan plan{.copying = p.copying,
                .makers = {},
                .options = p.options,
                .order = p.order(),
                .pinned = p.options.pin_memory && device::uses_pinned_memory(p.split.device),
                .random = p.random(),
                .split = p.split};
  if (p.options.workers == 0) plan.makers.push_back(p.maker);
  for (int i = 0; i < p.options.workers; ++i) plan.makers.push_back(p.maker->for_worker());
  if (p.batch_split(0).dispatch) return std::make_unique<DispatchedPass>(std::move(plan), p.progress);
  return std::make_unique<RunningPass>(std::move(plan), p.progress);
}

int64_t LoaderState::batch_size() const { return impl_->by_batch() ? 0 : impl_->plan().local_batch_size(); }
std::chrono::steady_clock::time_point LoaderState::began() const { return impl_->began; }
bool LoaderState::running() const { return impl_->progress->running != nullptr; }
bool LoaderState::end_of_dataloader() const { return impl_->progress->last; }
int64_t LoaderState::epoch() const { return impl_->progress->epoch; }
const DataLoaderOptions& LoaderState::options() const { return impl_->options; }
int64_t LoaderState::num_yielded() const { return impl_->progress->position; }
const StepSamples& LoaderState::samples() const { return impl_->progress->samples; }
void LoaderState::set_epoch(int64_t epoch) { impl_->progress->epoch = epoch; }
void LoaderState::set_even_batches(std::optional<bool> even) { impl_->split.even_batches = even; }
const SampleSplit& LoaderState::sample_split() const { return impl_->split; }
bool LoaderState::streams() const { return impl_->streams(); }
int64_t LoaderState::total_batch_size() const { return impl_->by_batch() ? 0 : impl_->plan().step_size(); }

int LoaderState::rank() const { return impl_->split.rank; }
int64_t LoaderState::remainder() const {
  if (impl_->options.drop_last || impl_->by_batch() || !impl_->sized()) return -1;
  return (impl_->samples() - impl_->progress->offset) % total_batch_size();
}

void LoaderState::seek(int64_t batch) {
  const auto batches = known_size();
  if (batch < 0 || (batches && batch > *batches))
    throw UsageError("MU108", "cannot seek to batch " + std::to_string(batch) + ": this rank's pass has " +
                                  (batches ? std::to_string(*batches) : "an unknown number of") + " batches");
  // Batches are counted with the offset of the current pass.
  impl_->seek(batch, batch == 0 ? 0 : impl_->progress->offset);
}

void LoaderState::Impl::seek(int64_t batch, int64_t offset) const {
  progress->next_start = batch;
  progress->next_offset = offset;
  progress->next_state.clear();
  if (progress->running) return;
  progress->position = batch;
  progress->offset = offset;
  progress->state.clear();
}

std::optional<int64_t> LoaderState::known_size() const {
  return impl_->sized() ? std::optional(impl_->plan().batches()) : std::nullopt;
}

int64_t LoaderState::size() const {
  if (const auto size = known_size()) return *size;
  throw UsageError(
      "MU113",
      "the length of a loader was asked for, but its stream does not say how many samples it has; give the stream "
      "a member size(), or ask known_size()");
}

int64_t LoaderState::dataset_size() const {
  if (impl_->maker->size() >= 0) return impl_->maker->size();
  throw UsageError(
      "MU113",
      "the size of a loader's dataset was asked for, but its stream does not say how many samples it has; give the "
      "stream a member size()");
}

LoaderPosition LoaderState::save_position() const {
  const auto& p = *impl_;
  return {.dataset = p.streams() ? p.progress->state : p.maker->state(),
          .epoch = epoch(),
          .samples = p.progress->offset + num_yielded() * p.step(),
          .seed = p.seed};
}

void LoaderState::load_position(const LoaderPosition& saved) {
  auto& p = *impl_;
  if (saved.samples < 0)
    throw UsageError("MU114", "a loader's saved position is sample " + std::to_string(saved.samples) +
                                  " of the pass, which has none of that number; load a state that save_position() "
                                  "or a checkpoint has");
  const bool whole = p.sized() && saved.samples >= p.total();
  p.seek(whole ? p.plan(0).batches() : saved.samples / p.step(), whole ? 0 : saved.samples % p.step());
  p.seed = saved.seed;
  p.progress->epoch = saved.epoch;
  if (p.streams()) {
    p.progress->next_state = saved.dataset;
    if (!p.progress->running) p.progress->state = saved.dataset;
  } else if (!saved.dataset.empty()) {
    p.maker->load_state(saved.dataset);
  }
}

/// Everything that must be equal on all ranks.
std::string LoaderState::describe_order() const {
  const auto& p = *impl_;
  const auto& o = p.options;
  const auto batch_split = p.batch_split(0);
  return std::string(p.order_name()) + ", samples " + std::to_string(p.total()) + ", batch_size " +
         std::to_string(o.batch_size) + (batch_split.drop_last ? ", drop_last" : "") +
         (batch_split.filler ? ", filler_batches"
          : batch_split.even ? ", even_batches"
                             : "") +
         (batch_split.split_batches ? ", split_batches" : "") + (batch_split.dispatch ? ", dispatch_batches" : "") +
         (o.seed ? ", seed " + std::to_string(*o.seed) : "");
}

std::string LoaderState::describe() const {
  const auto& p = *impl_;
  const auto& o = p.options;
  std::string text = p.order_name();
  if (!p.sampler && o.shuffle) text += ", seed " + std::to_string(p.seed);
  text += p.maker->size() < 0 ? ", unknown length" : ", " + std::to_string(p.maker->size()) + " samples";
  if (!p.by_batch()) text += ", batch " + std::to_string(batch_size()) + " x " + counted(p.split.world_size, "rank");
  if (p.sized()) text += ", " + std::to_string(size()) + " batches";
  const bool ends_short = !p.sized() || (p.by_batch() ? p.plan().ends_short() : p.samples() % total_batch_size() != 0);
  const bool pads = p.plan().pads() && ends_short;
  text += o.drop_last                      ? ", incomplete step dropped"
          : pads && p.split.filler_batches ? ", last step filled up"
          : pads                           ? ", last step padded"
                                           : "";
  if (p.batch_split(0).dispatch) text += ", read by rank 0";
  return text + ", " + (o.workers == 0 ? "made by the caller" : counted(o.workers, "worker")) + ", to " +
         p.split.device.str();
}

}  // namespace muster::data
