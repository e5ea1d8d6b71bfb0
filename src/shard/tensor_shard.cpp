#include "muster/shard/tensor_shard.h"

#include <algorithm>
#include <numeric>

namespace muster::shard {

std::vector<std::int64_t> memory_order(const at::Tensor& tensor) {
  std::vector<std::int64_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  return order;
}

std::vector<std::int64_t> permuted(at::IntArrayRef sizes, const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> result;
  for (const auto dim : order) result.push_back(sizes[static_cast<size_t>(dim)]);
  return result;
}

std::vector<std::int64_t> inverse(const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> result(order.size());
  for (size_t i = 0; i < order.size(); ++i) result.at(static_cast<size_t>(order[i])) = static_cast<std::int64_t>(i);
  return result;
}

at::Tensor select(const at::Tensor& whole, const TensorShard& shard) {
  const auto ordered = shard.order.empty() ? whole : whole.permute(shard.order);
  return ordered.reshape(-1).narrow(0, shard.begin, shard.local.numel());
}

}  // namespace muster::shard
