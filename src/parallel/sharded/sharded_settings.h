#pragma once

#include <ATen/core/Tensor.h>

#include "device/order.h"
#include "muster/comm/communicator.h"
#include "muster/parallel/sharded_options.h"

namespace muster::parallel {

/// The ranks over which a model is sharded, and the ranks that hold equal shards.
struct ShardGroups {
  comm::Communicator shards, replicas;
  comm::Communicator post_forward = {};  ///< the ranks of `shards` that keep full parameters, sharded among them,
                                         ///< between forward and backward
  int size() const noexcept { return shards.size() * replicas.size(); }
  bool is_main() const noexcept { return shards.rank() == 0 && replicas.rank() == 0; }
};

/// The parsed options of sharded training.
struct ShardSettings {
  bool keeps_after_forward = false;
  int64_t limit_bytes = 0;  ///< limit of gathered parameters; 0: the unit in use and the next one
  std::optional<at::ScalarType> buffer_dtype, output_dtype, param_dtype, reduce_dtype;
  bool cast_forward_inputs = true;
  bool one_copy_per_host = true;
  int post_forward_size = 0;  ///< number of neighbouring ranks over which full parameters stay sharded between forward
                              ///< and backward; 0: none
  double predivide = 0;
  ShardStage stage = ShardStage::full;

  /// Whether full parameters stay in the memory of each rank.
  bool keeps_params_unsharded() const noexcept { return stage != ShardStage::full; }
  /// The divisor of gradients of this many ranks before they are summed in this dtype.
  double divisor_before(at::ScalarType dtype, int ranks) const;
};

/// Throws: ConfigError (MU168) for an unknown value, or for one that is impossible with parameters sharded over that
/// many ranks.
ShardSettings read_settings(const ShardedOptions& options, int shards);

/// The streams of a device on which a sharded model communicates, so that the program's streams wait only for what they
/// use; empty on the CPU.
/// Why: docs/decisions/0139-streams-of-the-engine.md.
struct ShardStreams {
  at::Device accelerator = at::kCPU;  ///< device of the streams; the CPU if there is no accelerator
  device::Stream unshard = {};        ///< stream on which full parameters are gathered
  device::Stream reduce = {};         ///< stream on which gradients are reduced

  static ShardStreams of(at::Device device) {
    return {device, device::stream_from_pool(device), device::stream_from_pool(device)};
  }
};

}  // namespace muster::parallel
