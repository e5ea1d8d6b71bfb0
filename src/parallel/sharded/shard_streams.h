#pragma once

#include <ATen/core/Tensor.h>

#include "device/order.h"

namespace muster::parallel {

inline constexpr device::SyncPoint kReduceStream{"fsdp: gradients are reduced on a stream of their own"};

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
