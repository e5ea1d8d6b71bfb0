#include "index_order.h"

#include <algorithm>
#include <string>
#include <utility>

#include "muster/base/error.h"

namespace muster::data {
namespace {

int64_t checked(int64_t index, int64_t size) {
  if (index >= 0 && index < size) return index;
  throw UsageError("MU109", "the sampler gave index " + std::to_string(index) + ", but the data set has " +
                                std::to_string(size) + " samples; make it give indices from 0 to " +
                                std::to_string(size - 1));
}

}  // namespace

bool IndexOrder::prepare(int64_t batch, BatchContent& content) {
  if (batch >= batches_) return false;
  content.samples = fill(batch, content.indices);
  content.last = batch + 1 == batches_;
  return true;
}

ComputedOrder::ComputedOrder(const ShardPlan& plan, bool shuffle, uint64_t seed, int64_t epoch)
    : IndexOrder(plan.batches()), permutation_(plan.size(), seed, epoch), plan_(plan), shuffle_(shuffle) {}

StepSamples ComputedOrder::fill(int64_t batch, std::vector<int64_t>& indices) {
  const auto [count, start] = plan_.order_range(batch);
  const int64_t size = plan_.size();
  indices.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t order_index = start + i < size ? start + i : (start + i) % size;
    indices[i] = shuffle_ ? permutation_(order_index) : order_index;
  }
  return plan_.samples(batch);
}

SampledOrder::SampledOrder(const ShardPlan& plan, std::shared_ptr<Sampler> sampler, int64_t dataset_size, int64_t epoch,
                           int64_t first_batch)
    : IndexOrder(plan.batches()), dataset_size_(dataset_size), plan_(plan), sampler_(std::move(sampler)) {
  head_.resize(std::min(plan_.padding(), plan_.size()));
  if (!head_.empty()) {
    sampler_->start(epoch);
    for (auto& index : head_) index = checked(sampler_->next(), dataset_size_);
  }
  sampler_->start(epoch);
  if (first_batch == 0 || first_batch >= plan_.batches()) return;
  cursor_ = std::min(plan_.order_range(first_batch).start, plan_.size());
  sampler_->seek(cursor_);
}

StepSamples SampledOrder::fill(int64_t batch, std::vector<int64_t>& indices) {
  const auto [count, start] = plan_.order_range(batch);
  for (; cursor_ < std::min(start, plan_.size()); ++cursor_) sampler_->next();
  indices.clear();
  for (int64_t order_index = start; order_index < start + count; ++order_index) {
    if (order_index >= plan_.size()) {
      indices.push_back(head_[order_index % plan_.size()]);
    } else {
      indices.push_back(checked(sampler_->next(), dataset_size_));
      ++cursor_;
    }
  }
  return plan_.samples(batch);
}

BatchSampledOrder::BatchSampledOrder(const BatchShardPlan& plan, std::shared_ptr<BatchSampler> sampler,
                                     int64_t dataset_size, int64_t epoch, int64_t first_batch)
    : IndexOrder(plan.batches()), dataset_size_(dataset_size), plan_(plan), sampler_(std::move(sampler)) {
  const auto& sharding = plan_.sharding();
  if (plan_.pads()) {
    sampler_->start(epoch);
    for (int64_t i = 0; i < std::min<int64_t>(sharding.world_size, sharding.size); ++i)
      head_.push_back(sampler_->next());
  }
  sampler_->start(epoch);
  const int64_t first = sharding.offset + first_batch * sharding.world_size;
  if (first > 0 && first_batch < plan_.batches()) sampler_->seek(first);
}

StepSamples BatchSampledOrder::fill(int64_t batch, std::vector<int64_t>& indices) {
  const auto& sharding = plan_.sharding();
  StepSamples samples;
  for (int r = 0; r < sharding.world_size; ++r) {
    const int64_t global = sharding.offset + batch * sharding.world_size + r;
    const bool padding = global >= sharding.size;
    if (padding && head_.empty()) {
      samples.every_rank = false;
      break;
    }
    auto next = padding ? head_[(global - sharding.size) % head_.size()] : sampler_->next();
    const auto count = static_cast<int64_t>(next.size());
    samples.total += count;
    if (!padding) samples.real += count;
    if (r != sharding.rank) continue;
    samples.local = count;
    samples.local_real = padding ? 0 : count;
    indices = std::move(next);
  }
  for (const int64_t index : indices) checked(index, dataset_size_);
  if (batch + 1 == plan_.batches() && !sharding.drop_last)
    for (int64_t global = sharding.offset + (batch + 1) * sharding.world_size; global < sharding.size; ++global)
      samples.left += static_cast<int64_t>(sampler_->next().size());
  return samples;
}

}  // namespace muster::data
