#include "parallel/sharded/shard_layout.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/empty_strided.h>

#include "muster/optim/flat_parameters.h"

namespace muster::parallel {

ShardLayout::ShardLayout(const std::vector<int64_t>& numels, int world, int64_t multiple) : world_(world) {
  int64_t end = 0;
  for (auto numel : numels) {
    spans_.push_back({end, optim::padded(numel)});
    end += spans_.back().length;
  }
  const auto unit = std::lcm(optim::kFlatPadding, multiple);
  shard_numel_ = (end + unit * world - 1) / (unit * world) * unit;
}

shard::Run ShardLayout::part(size_t i, int rank) const {
  const auto low = shard_numel_ * rank, high = low + shard_numel_;
  const auto begin = std::clamp(spans_[i].begin, low, high);
  const auto end = std::clamp(spans_[i].begin + spans_[i].length, low, high);
  return {begin - low, end - begin};
}

size_t ShardLayout::at(int64_t element) const {
  auto next = std::upper_bound(spans_.begin(), spans_.end(), element,
                               [](int64_t e, const shard::Run& span) { return e < span.begin; });
  return static_cast<size_t>(next - spans_.begin()) - 1;
}

at::Tensor in_memory_order(const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.sizes() == like.sizes() && tensor.strides() == like.strides())
    return tensor.as_strided({tensor.numel()}, {1});
  auto ordered = at::empty_strided(like.sizes(), like.strides(), tensor.options());
  ordered.copy_(tensor);
  return ordered.as_strided({ordered.numel()}, {1});
}

}  // namespace muster::parallel
