#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "index_order.h"
#include "shard_plan.h"

namespace muster::data {

/// The samples of a map-style dataset that this rank reads for all ranks: batch `step * world + i` is rank i + 1's part
/// of the step, and this rank's part comes last, as in StreamOrder.
class DispatchedOrder : public BatchOrder {
 public:
  /// Makes the order of a pass in which one rank gets everything, from batch `first` on.
  using Whole = std::function<std::shared_ptr<IndexOrder>(const ShardPlan&, int64_t first)>;
  DispatchedOrder(const BatchSharding& sharding, int64_t first_step, const Whole& whole);
  bool random_access() const override { return false; }
  bool prepare(int64_t batch, BatchContent& content) override;

 private:
  ShardPlan plan(int rank) const;

  BatchSharding sharding_;
  std::vector<int64_t> head_;  // indices that padding repeats
  BatchContent step_;          // samples of all ranks in the current step
  std::shared_ptr<IndexOrder> whole_;
};

}  // namespace muster::data
