#include "shard_plan.h"

#include <algorithm>
#include <string>

#include "muster/base/error.h"

namespace muster::data {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check_world(const BatchSharding& sharding) {
  if (sharding.world_size < 1 || sharding.rank < 0 || sharding.rank >= sharding.world_size)
    throw ConfigError("MU107", "rank " + std::to_string(sharding.rank) + " is not in a world of " +
                                   std::to_string(sharding.world_size));
}

}  // namespace

ShardPlan::ShardPlan(const BatchSharding& sharding) : sharding_(sharding) {
  check_world(sharding);
  if (sharding.batch_size < 1)
    throw ConfigError("MU107",
                      "a loader's batch_size is " + std::to_string(sharding.batch_size) + "; give one of at least 1");
  if (sharding.world_size == 1) {
    sharding_.split = false;
    sharding_.even = false;
    sharding_.filler = false;
  }
  if (sharding_.filler) sharding_.even = false;
  if (sharding_.split && sharding.batch_size % sharding.world_size != 0)
    throw ConfigError("MU107", "split_batches cannot split batches of " + std::to_string(sharding.batch_size) +
                                   " into " + std::to_string(sharding.world_size) +
                                   " equal pieces; give a batch_size that is a multiple of the world size");
}

int64_t ShardPlan::local_batch_size() const {
  return sharding_.split ? sharding_.batch_size / sharding_.world_size : sharding_.batch_size;
}

int64_t ShardPlan::step_size() const { return local_batch_size() * sharding_.world_size; }

int64_t ShardPlan::batches() const {
  const int64_t steps = (sharding_.size - sharding_.offset) / step_size();
  const int64_t rest = (sharding_.size - sharding_.offset) % step_size();
  if (sharding_.drop_last || rest == 0) return steps;
  if (sharding_.even || sharding_.filler) return steps + 1;
  return steps + (rest > sharding_.rank * piece_size(steps) ? 1 : 0);
}

/// The number of samples that a rank gets in this step (fewer at the end of the data).
int64_t ShardPlan::piece_size(int64_t batch) const {
  const int64_t left = sharding_.size - start_of(batch);
  return sharding_.dispatch && left < step_size() ? ceil_div(left, sharding_.world_size) : local_batch_size();
}

OrderRange ShardPlan::order_range(int64_t batch) const {
  const int64_t piece = piece_size(batch);
  const int64_t start = start_of(batch) + sharding_.rank * piece;
  const bool whole = sharding_.even || (sharding_.filler && start >= sharding_.size);
  return {whole ? piece : std::min(piece, sharding_.size - start), start};
}

int64_t ShardPlan::total(int64_t batch, int64_t real) const {
  const int64_t piece = piece_size(batch);
  if (sharding_.even) return piece * sharding_.world_size;
  return sharding_.filler ? real + (sharding_.world_size - ceil_div(real, piece)) * piece : real;
}

StepSamples ShardPlan::samples(int64_t batch) const {
  const auto [count, start] = order_range(batch);
  const int64_t left = sharding_.size - start_of(batch), real = std::min(step_size(), left);
  const int64_t rest = sharding_.drop_last || batch + 1 < batches() ? 0 : left - real;
  const bool every_rank = sharding_.even || sharding_.filler || left > (sharding_.world_size - 1) * piece_size(batch);
  return {.every_rank = every_rank,
          .local = count,
          .local_real = std::clamp<int64_t>(sharding_.size - start, 0, count),
          .real = real,
          .left = rest,
          .total = total(batch, real)};
}

int64_t ShardPlan::padding() const {
  if (batches() == 0) return 0;
  const auto last = order_range(batches() - 1);
  return std::max<int64_t>(0, last.start + last.count - sharding_.size);
}

BatchShardPlan::BatchShardPlan(const BatchSharding& sharding) : sharding_(sharding) {
  check_world(sharding);
  if (sharding.filler) sharding_.even = true;  // batches stay whole, so a padded step repeats whole batches
  if (sharding.world_size == 1) sharding_.even = false;
  if (sharding.split && sharding.world_size > 1)
    throw ConfigError("MU107",
                      "split_batches cannot split batches that are ready-made or a batch sampler's, whose sizes vary; "
                      "make one batch per rank");
}

int64_t BatchShardPlan::batches() const {
  const int64_t world = sharding_.world_size, left = sharding_.size - sharding_.offset;
  if (sharding_.drop_last) return left / world;
  return sharding_.even ? ceil_div(left, world) : ceil_div(std::max<int64_t>(0, left - sharding_.rank), world);
}

bool BatchShardPlan::pads() const {
  return sharding_.even && !sharding_.drop_last && (sharding_.size - sharding_.offset) % sharding_.world_size != 0;
}

}  // namespace muster::data
