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
  dist::Communicator neighbours = {};   ///< of the shards, those that keep whole values between forward and backward
  int size() const noexcept { return shards.size() * replicas.size(); }
  bool is_main() const noexcept { return shards.rank() == 0 && replicas.rank() == 0; }
};

/// The options of sharded training, read.
struct ShardSettings {
  bool keeps_after_forward = false;
  int64_t limit_bytes = 0;   ///< 0: the unit in use and the next
  std::optional<at::ScalarType> buffer_dtype, output_dtype, param_dtype, reduce_dtype;
  bool cast_forward_inputs = true;
  int kept_over = 0;   ///< neighbours that whole values stay cut over between forward and backward; 0: none
  double predivide = 0;
  ShardStage stage = ShardStage::full;

  /// Whole parameters stay in the memory of each rank.
  bool resident() const noexcept { return stage != ShardStage::full; }
  /// By what gradients of this many ranks are divided before they are summed in this dtype.
  double divisor_before(at::ScalarType dtype, int ranks) const;
};

/// Throws: ConfigError (MU168) for a value that is not known or cannot be kept where parameters are cut over so many ranks.
ShardSettings read_settings(const ShardedOptions& options, int shards);

}  // namespace muster::parallel
