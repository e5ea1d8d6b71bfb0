#include "muster/data/loader_state.h"

#include "pass.h"

#include "muster/base/error.h"
#include "muster/device/device.h"

#include <ATen/Context.h>

#include <string>
#include <utility>

namespace muster::data {
namespace {

Deal deal_of(const DataLoaderOptions& options, const ShardSpec& shard, int64_t size) {
  return {.batch_size = options.batch_size,
          .drop_last = options.drop_last,
          .even = shard.even_batches.value_or(options.even_batches),
          .rank = shard.rank,
          .size = size,
          .split = shard.split_batches.value_or(options.split_batches),
          .world_size = shard.world_size};
}

uint64_t seed_of(const DataLoaderOptions& options, const ShardSpec& shard) {
  if (options.seed) return *options.seed;
  return shard.seed ? *shard.seed : at::globalContext().defaultGenerator(at::kCPU).current_seed();
}

void check(const DataLoaderOptions& options, bool has_sampler, bool has_batch_sampler) {
  if (options.workers < 0 || options.workers > 1024)
    throw ConfigError("MU107", "a loader's workers is " + std::to_string(options.workers) + "; give 0 to 1024");
  if (options.prefetch < 1) throw ConfigError("MU107", "a loader's prefetch is " + std::to_string(options.prefetch) + "; give at least 1");
  if (options.shuffle && (has_sampler || has_batch_sampler))
    throw ConfigError("MU107", "a loader has a sampler and shuffle = true; the sampler decides the order, so leave shuffle out");
  if (has_batch_sampler && (options.batch_size != 1))
    throw ConfigError("MU107", "a loader has a batch sampler, which decides the batches; leave batch_size out");
}

}  // namespace

struct LoaderState::Parts {
  std::shared_ptr<BatchMaker> maker;
  DataLoaderOptions options;
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
  std::optional<AnySampler> sampler;
  uint64_t seed = 0;
  ShardSpec shard;

  BatchSampler* batch_sampler() const { return sampler ? sampler->batch_sampler().get() : nullptr; }
  int64_t stream_size() const { return sampler && sampler->sampler() ? sampler->sampler()->size() : maker->size(); }
  ShardPlan plan() const { return ShardPlan(deal_of(options, shard, stream_size())); }
  BatchShardPlan batch_plan() const { return BatchShardPlan(deal_of(options, shard, batch_sampler()->size())); }
  int64_t batches() const { return batch_sampler() ? batch_plan().batches() : plan().batches(); }
  std::shared_ptr<IndexOrder> order() const;
};

std::shared_ptr<IndexOrder> LoaderState::Parts::order() const {
  const int64_t epoch = progress->epoch, first = progress->next_start;
  if (batch_sampler())
    return std::make_shared<BatchSampledOrder>(batch_plan(), sampler->batch_sampler(), maker->size(), epoch, first);
  if (sampler) return std::make_shared<SampledOrder>(plan(), sampler->sampler(), maker->size(), epoch, first);
  return std::make_shared<ComputedOrder>(plan(), options.shuffle, seed, epoch);
}

LoaderState::LoaderState(std::shared_ptr<BatchMaker> maker, std::optional<AnySampler> sampler, const DataLoaderOptions& options,
                         const ShardSpec& shard)
    : parts_(std::make_unique<Parts>()) {
  parts_->maker = std::move(maker);
  parts_->options = options;
  parts_->sampler = std::move(sampler);
  parts_->seed = seed_of(options, shard);
  parts_->shard = shard;
  check(options, parts_->sampler && parts_->sampler->sampler(), parts_->batch_sampler());
  parts_->batches();
}

LoaderState::~LoaderState() = default;

std::shared_ptr<LoaderState> LoaderState::distributed(const ShardSpec& shard) const {
  auto state = std::make_shared<LoaderState>(parts_->maker, parts_->sampler, parts_->options, shard);
  state->parts_->progress->epoch = epoch();
  state->parts_->progress->next_start = parts_->progress->next_start;
  state->parts_->progress->position = position();
  return state;
}

std::unique_ptr<Pass> LoaderState::begin_pass() {
  auto& p = *parts_;
  if (p.progress->running) p.progress->running->end();
  RunningPass::Plan plan{.makers = {},
                         .options = p.options,
                         .order = p.order(),
                         .pinned = p.options.pin_memory && device::uses_pinned_memory(p.shard.device),
                         .random = EpochRandom(p.seed, p.progress->epoch),
                         .shard = p.shard,
                         .size = p.batches()};
  if (p.options.workers == 0) plan.makers.push_back(p.maker);
  for (int i = 0; i < p.options.workers; ++i) plan.makers.push_back(p.maker->for_worker());
  return std::make_unique<RunningPass>(std::move(plan), p.progress);
}

int64_t LoaderState::batch_size() const { return parts_->batch_sampler() ? 0 : parts_->plan().local_batch_size(); }
int64_t LoaderState::dataset_size() const { return parts_->maker->size(); }
bool LoaderState::end_of_dataloader() const { return parts_->progress->last; }
int64_t LoaderState::epoch() const { return parts_->progress->epoch; }
const DataLoaderOptions& LoaderState::options() const { return parts_->options; }
int64_t LoaderState::position() const { return parts_->progress->position; }
int64_t LoaderState::real_samples() const { return parts_->progress->real_samples; }
void LoaderState::set_epoch(int64_t epoch) { parts_->progress->epoch = epoch; }
const ShardSpec& LoaderState::shard() const { return parts_->shard; }
int64_t LoaderState::size() const { return parts_->batches(); }
int64_t LoaderState::total_batch_size() const { return parts_->batch_sampler() ? 0 : parts_->plan().step_size(); }

int64_t LoaderState::remainder() const {
  if (parts_->options.drop_last || parts_->batch_sampler()) return -1;
  return parts_->stream_size() % total_batch_size();
}

void LoaderState::seek(int64_t batch) {
  if (batch < 0 || batch > size())
    throw UsageError("MU108", "cannot seek to batch " + std::to_string(batch) + ": this rank's pass has " + std::to_string(size()) +
                                  " batches");
  parts_->progress->next_start = batch;
  if (!parts_->progress->running) parts_->progress->position = batch;
}

std::string LoaderState::describe() const {
  const auto& p = *parts_;
  const auto& o = p.options;
  std::string text = p.batch_sampler() ? "batch sampler" : p.sampler ? "sampler" : o.shuffle ? "shuffled, seed " + std::to_string(p.seed) : "sequential";
  text += ", " + std::to_string(dataset_size()) + " samples";
  if (!p.batch_sampler())
    text += ", batch " + std::to_string(batch_size()) + " x " + std::to_string(p.shard.world_size) + (p.shard.world_size == 1 ? " rank" : " ranks");
  text += ", " + std::to_string(size()) + " batches";
  const bool pads = p.batch_sampler() ? p.batch_plan().pads() : p.shard.world_size > 1 && p.plan().batches() * total_batch_size() > p.stream_size();
  text += o.drop_last ? ", incomplete step dropped" : pads ? ", last step padded" : "";
  return text + ", " + (o.workers == 0 ? "made by the caller" : std::to_string(o.workers) + (o.workers == 1 ? " worker" : " workers")) +
         ", to " + p.shard.device.str();
}

}  // namespace muster::data
