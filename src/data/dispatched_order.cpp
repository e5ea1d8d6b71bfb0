#include "dispatched_order.h"

namespace muster::data {
namespace {

/// Each step as one batch of a single rank, never padded.
ShardPlan plan_of_steps(const BatchSharding& sharding, int64_t offset) {
  return ShardPlan({.batch_size = ShardPlan(sharding).step_size(),
                    .drop_last = sharding.drop_last,
                    .offset = offset,
                    .size = sharding.size});
}

}  // namespace

DispatchedOrder::DispatchedOrder(const BatchSharding& sharding, int64_t first_step, const Whole& whole)
    : sharding_(sharding) {
  // The order in use is made second: a sampler can have only one position.
  const auto from_begin = plan_of_steps(sharding, 0);
  if (ShardPlan(sharding).pads() && from_begin.batches() > 0) whole(from_begin, 0)->fill(0, head_);
  whole_ = whole(plan_of_steps(sharding, sharding.offset), first_step);
}

ShardPlan DispatchedOrder::plan(int rank) const {
  auto sharding = sharding_;
  sharding.rank = rank;
  return ShardPlan(sharding);
}

bool DispatchedOrder::prepare(int64_t batch, BatchContent& content) {
  const int64_t step = batch / sharding_.world_size;
  if (batch % sharding_.world_size == 0 && !whole_->prepare(step, step_)) return false;
  content.indices.clear();
  const auto own = plan(static_cast<int>((batch + 1) % sharding_.world_size));
  content.last = step + 1 >= own.batches();
  content.none = step >= own.batches();
  if (content.none) {
    const auto all = plan(0).samples(step);
    content.samples = {.real = all.real, .total = all.total};
    return true;
  }
  content.samples = own.samples(step);
  const auto [count, start] = own.order_range(step);
  const int64_t first = own.start_of(step);
  for (int64_t p = start; p < start + count; ++p)
    content.indices.push_back(p < own.size() ? step_.indices[p - first] : head_[p % own.size()]);
  return true;
}

}  // namespace muster::data
