#pragma once

#include <cstdint>
#include <vector>

#include "muster/data/batches.h"
#include "muster/data/sampler.h"
#include "permutation.h"

namespace muster::data {

/// The order of ready-made batches in a pass: as listed, or shuffled from (seed, epoch) alone. Represents a batch by
/// the indices of its samples.
class ReadyBatchSampler final : public BatchSampler {
 public:
  ReadyBatchSampler(const ReadyBatchEnds& batches, bool shuffle, uint64_t seed, int64_t epoch);
  int64_t size() const override { return static_cast<int64_t>(ends_.size()); }
  void start(int64_t) override { position_ = 0; }
  std::vector<int64_t> next() override;
  void seek(int64_t batch) override { position_ = batch; }

 private:
  std::vector<int64_t> ends_;
  Permutation permutation_;
  int64_t position_ = 0;
  bool shuffle_;
};

}  // namespace muster::data
