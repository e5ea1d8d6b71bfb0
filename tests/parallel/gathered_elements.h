#pragma once

#include <cstdint>
#include <vector>

#include "parallel/sharded/shard_layout.h"
#include "parallel/sharded/units.h"

namespace muster::parallel::sharded {

/// The elements that one gather of every unit brings to a rank from others, and the flags of one reduction.
struct GatheredElements {
  int64_t all = 0, root = 0, flags = 0;
  GatheredElements(const torch::nn::Module& module, int world) {
    for (const auto& plan : plan_units(module, {})) {
      std::vector<int64_t> numels;
      for (const auto& parameter : plan.parameters) numels.push_back(parameter.tensor.numel());
      const auto shard_numel = ShardLayout(numels, world).shard_numel();
      all += shard_numel * (world - 1);
      if (plan.root) root += shard_numel * (world - 1);
      flags += static_cast<int64_t>(numels.size() + 1) * (world - 1);
    }
  }
};

}  // namespace muster::parallel::sharded
