#include "ready_batches.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "muster/base/error.h"

namespace muster::data {

void ReadyBatchEnds::add(int64_t samples) {
  if (samples < 1)
    throw ConfigError("MU323", "batch " + std::to_string(ends_.size()) +
                                   " of muster::Batches has no samples: the first dimension of its first tensor is 0; "
                                   "leave the batch out");
  ends_.push_back(this->samples() + samples);
}

size_t ReadyBatchEnds::batch_of(int64_t sample) const {
  return static_cast<size_t>(std::ranges::upper_bound(ends_, sample) - ends_.begin());
}

ReadyBatchSampler::ReadyBatchSampler(const ReadyBatchEnds& batches, bool shuffle, uint64_t seed, int64_t epoch)
    : ends_(batches.ends()), permutation_(static_cast<int64_t>(ends_.size()), seed, epoch), shuffle_(shuffle) {}

std::vector<int64_t> ReadyBatchSampler::next() {
  const auto batch = static_cast<size_t>(shuffle_ ? permutation_(position_) : position_);
  ++position_;
  const int64_t begin = batch == 0 ? 0 : ends_[batch - 1];
  std::vector<int64_t> samples(static_cast<size_t>(ends_[batch] - begin));
  std::iota(samples.begin(), samples.end(), begin);
  return samples;
}

}  // namespace muster::data
