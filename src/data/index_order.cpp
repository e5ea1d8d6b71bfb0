#include "index_order.h"

#include "muster/base/error.h"

#include <algorithm>
#include <string>
#include <utility>

namespace muster::data {
namespace {

int64_t checked(int64_t index, int64_t size) {
  if (index >= 0 && index < size) return index;
  throw UsageError("MU109", "the sampler gave index " + std::to_string(index) + ", but the data set has " + std::to_string(size) +
                                " samples; make it give indices from 0 to " + std::to_string(size - 1));
}

}  // namespace

ComputedOrder::ComputedOrder(const ShardPlan& plan, bool shuffle, uint64_t seed, int64_t epoch)
    : permutation_(plan.size(), seed, epoch), plan_(plan), shuffle_(shuffle) {}

int64_t ComputedOrder::fill(int64_t batch, std::vector<int64_t>& indices) {
  const auto [count, start] = plan_.positions(batch);
  const int64_t size = plan_.size();
  indices.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = start + i < size ? start + i : (start + i) % size;
    indices[i] = shuffle_ ? permutation_(position) : position;
  }
  return plan_.real_samples(batch);
}

SampledOrder::SampledOrder(const ShardPlan& plan, std::shared_ptr<Sampler> sampler, int64_t dataset_size, int64_t epoch,
                           int64_t first_batch)
    : dataset_size_(dataset_size), plan_(plan), sampler_(std::move(sampler)) {
  head_.resize(std::min(plan_.padding(), plan_.size()));
  if (!head_.empty()) {
    sampler_->start(epoch);
    for (auto& index : head_) index = checked(sampler_->next(), dataset_size_);
  }
  sampler_->start(epoch);
  if (first_batch == 0 || first_batch >= plan_.batches()) return;
  cursor_ = std::min(plan_.positions(first_batch).start, plan_.size());
  sampler_->seek(cursor_);
}

int64_t SampledOrder::fill(int64_t batch, std::vector<int64_t>& indices) {
  const auto [count, start] = plan_.positions(batch);
  for (; cursor_ < std::min(start, plan_.size()); ++cursor_) sampler_->next();
  indices.clear();
  for (int64_t position = start; position < start + count; ++position) {
    if (position >= plan_.size()) {
      indices.push_back(head_[position % plan_.size()]);
    } else {
      indices.push_back(checked(sampler_->next(), dataset_size_));
      ++cursor_;
    }
  }
  return plan_.real_samples(batch);
}

BatchSampledOrder::BatchSampledOrder(const BatchShardPlan& plan, std::shared_ptr<BatchSampler> sampler, int64_t dataset_size,
                                     int64_t epoch, int64_t first_batch)
    : dataset_size_(dataset_size), plan_(plan), sampler_(std::move(sampler)) {
  const auto& deal = plan_.deal();
  if (plan_.pads()) {
    sampler_->start(epoch);
    for (int64_t i = 0; i < std::min<int64_t>(deal.world_size, deal.size); ++i) head_.push_back(sampler_->next());
  }
  sampler_->start(epoch);
  if (first_batch > 0 && first_batch < plan_.batches()) sampler_->seek(first_batch * deal.world_size);
}

int64_t BatchSampledOrder::fill(int64_t batch, std::vector<int64_t>& indices) {
  const auto& deal = plan_.deal();
  int64_t real = 0;
  for (int r = 0; r < deal.world_size; ++r) {
    const int64_t global = batch * deal.world_size + r;
    const bool padding = global >= deal.size;
    if (padding && head_.empty()) break;
    auto next = padding ? head_[(global - deal.size) % head_.size()] : sampler_->next();
    if (!padding) real += static_cast<int64_t>(next.size());
    if (r == deal.rank) indices = std::move(next);
  }
  for (const int64_t index : indices) checked(index, dataset_size_);
  return real;
}

}  // namespace muster::data
