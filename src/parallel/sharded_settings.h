#pragma once

#include "muster/dist/communicator.h"
#include "muster/parallel/sharded_options.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace muster::parallel {

/// Who shares the parts of a model, and who else has the same part.
struct ShardGroups {
  dist::Communicator shards, replicas;
  int size() const noexcept { return shards.size() * replicas.size(); }
  bool is_main() const noexcept { return shards.rank() == 0 && replicas.rank() == 0; }
};

/// The options of sharded training, read.
struct ShardSettings {
  bool keeps_after_forward = false;
  int64_t limit_bytes = 0;   ///< 0: the unit in use and the next
  std::optional<at::ScalarType> param_dtype, reduce_dtype;
  double predivide = 0;
  ShardStage stage = ShardStage::full;

  /// Whole parameters stay in the memory of each rank.
  bool resident() const noexcept { return stage != ShardStage::full; }
  /// By what gradients of this many ranks are divided before they are summed in this dtype.
  double divisor_before(at::ScalarType dtype, int ranks) const;
};

/// Throws: ConfigError (MU168) for a value that is not known or cannot be kept.
ShardSettings read_settings(const ShardedOptions& options);

}  // namespace muster::parallel
