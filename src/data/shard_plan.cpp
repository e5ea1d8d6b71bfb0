#include "shard_plan.h"

#include <algorithm>
#include <string>

#include "muster/base/error.h"

namespace muster::data {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check_world(const Deal& deal) {
  if (deal.world_size < 1 || deal.rank < 0 || deal.rank >= deal.world_size)
    throw ConfigError("MU107",
                      "rank " + std::to_string(deal.rank) + " is not in a world of " + std::to_string(deal.world_size));
}

}  // namespace

ShardPlan::ShardPlan(const Deal& deal) : deal_(deal) {
  check_world(deal);
  if (deal.batch_size < 1)
    throw ConfigError("MU107",
                      "a loader's batch_size is " + std::to_string(deal.batch_size) + "; give one of at least 1");
  if (deal.world_size == 1) {
    deal_.split = false;
    deal_.even = false;
  }
  if (deal_.split && deal.batch_size % deal.world_size != 0)
    throw ConfigError("MU107", "split_batches cannot cut batches of " + std::to_string(deal.batch_size) + " into " +
                                   std::to_string(deal.world_size) +
                                   " equal pieces; give a batch_size that is a multiple of the world size");
}

int64_t ShardPlan::local_batch_size() const {
  return deal_.split ? deal_.batch_size / deal_.world_size : deal_.batch_size;
}

int64_t ShardPlan::step_size() const { return local_batch_size() * deal_.world_size; }

int64_t ShardPlan::batches() const {
  const int64_t steps = deal_.size / step_size();
  const int64_t rest = deal_.size % step_size();
  if (deal_.drop_last || rest == 0) return steps;
  if (deal_.even) return steps + 1;
  return steps + (rest > deal_.rank * piece_size(steps) ? 1 : 0);
}

/// Samples that a rank gets of this step unless they run out.
int64_t ShardPlan::piece_size(int64_t batch) const {
  const int64_t left = deal_.size - batch * step_size();
  return deal_.dispatch && left < step_size() ? ceil_div(left, deal_.world_size) : local_batch_size();
}

Positions ShardPlan::positions(int64_t batch) const {
  const int64_t piece = piece_size(batch);
  const int64_t start = batch * step_size() + deal_.rank * piece;
  return {deal_.even ? piece : std::min(piece, deal_.size - start), start};
}

StepSamples ShardPlan::samples(int64_t batch) const {
  const auto [count, start] = positions(batch);
  const int64_t left = deal_.size - batch * step_size(), real = std::min(step_size(), left);
  const int64_t rest = deal_.drop_last || batch + 1 < batches() ? 0 : left - real;
  return {.local = count,
          .local_real = std::clamp<int64_t>(deal_.size - start, 0, count),
          .real = real,
          .rest = rest,
          .total = deal_.even ? piece_size(batch) * deal_.world_size : real};
}

int64_t ShardPlan::padding() const {
  if (batches() == 0) return 0;
  const auto last = positions(batches() - 1);
  return std::max<int64_t>(0, last.start + last.count - deal_.size);
}

BatchShardPlan::BatchShardPlan(const Deal& deal) : deal_(deal) {
  check_world(deal);
  if (deal.world_size == 1) deal_.even = false;
  if (deal.split && deal.world_size > 1)
    throw ConfigError("MU107",
                      "split_batches cannot cut the batches of a batch sampler, whose sizes vary; let the sampler make "
                      "one batch per rank");
}

int64_t BatchShardPlan::batches() const {
  const int64_t world = deal_.world_size;
  if (deal_.drop_last) return deal_.size / world;
  return deal_.even ? ceil_div(deal_.size, world) : ceil_div(std::max<int64_t>(0, deal_.size - deal_.rank), world);
}

bool BatchShardPlan::pads() const { return deal_.even && !deal_.drop_last && deal_.size % deal_.world_size != 0; }

}  // namespace muster::data
