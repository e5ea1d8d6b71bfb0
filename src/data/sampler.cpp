#include "muster/data/sampler.h"

#include <cmath>
#include <numeric>

#include "data/random.h"
#include "muster/base/error.h"
#include "muster/data/random.h"

namespace muster {

BatchListSampler::BatchListSampler(std::vector<std::vector<int64_t>> batches) : batches_(std::move(batches)) {
  const auto empty = std::ranges::find_if(batches_, [](const auto& batch) { return batch.empty(); });
  if (empty != batches_.end())
    throw ConfigError("MU120", "list " + std::to_string(empty - batches_.begin()) + " of " +
                                   std::to_string(batches_.size()) +
                                   " of a BatchListSampler has no index; leave it out, or give it one");
}

void RandomSampler::start(int64_t epoch) {
  epoch_ = epoch;
  position_ = 0;
}

int64_t RandomSampler::next() { return data::Permutation(size_, seed_, epoch_)(position_++); }

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, int64_t count, uint64_t seed,
                                             bool replacement)
    : count_(count), replacement_(replacement), seed_(data::mix(seed, 0x77656967687473)), weights_(std::move(weights)) {
  const auto wrong = std::ranges::find_if(weights_, [](double w) { return !std::isfinite(w) || w < 0; });
  if (wrong != weights_.end())
    throw ConfigError("MU116", "weight " + std::to_string(wrong - weights_.begin()) + " of a sampler is " +
                                   std::to_string(*wrong) + "; weights are finite and at least 0");
  const auto usable = std::ranges::count_if(weights_, [](double w) { return w > 0; });
  if (count < 0 || (count > 0 && usable == 0) || (!replacement && count > usable))
    throw ConfigError("MU116", "a weighted sampler is to draw " + std::to_string(count) + " indices, but " +
                                   std::to_string(usable) + " have a weight above 0; draw fewer, or with replacement");
  if (replacement) std::partial_sum(weights_.begin(), weights_.end(), weights_.begin());
}

double WeightedRandomSampler::uniform(int64_t position) const {
  return SampleRandom(seed_, epoch_, position).uniform();
}

void WeightedRandomSampler::start(int64_t epoch) {
  epoch_ = epoch;
  position_ = 0;
  if (!replacement_ && raced_ != epoch) race();
}

void WeightedRandomSampler::race() {
  std::vector<std::pair<double, int64_t>> arrivals;
  for (int64_t i = 0; i < static_cast<int64_t>(weights_.size()); ++i)
    if (weights_[i] > 0) arrivals.emplace_back(-std::log1p(-uniform(i)) / weights_[i], i);
  std::ranges::partial_sort(arrivals, arrivals.begin() + count_);
  order_.resize(count_);
  for (int64_t i = 0; i < count_; ++i) order_[i] = arrivals[i].second;
  raced_ = epoch_;
}

int64_t WeightedRandomSampler::next() {
  const int64_t position = position_++;
  if (!replacement_) return order_[position];
  // Rounding alone can lead past the last sum; the last index with a nonzero weight is then the right one.
  auto found = std::ranges::upper_bound(weights_, uniform(position) * weights_.back());
  if (found == weights_.end()) found = std::ranges::lower_bound(weights_, weights_.back());
  return found - weights_.begin();
}

}  // namespace muster
