#pragma once

#include <ATen/core/Tensor.h>

#include "device/order.h"

namespace muster::parallel {

inline constexpr device::SyncPoint kReduceStream{"fsdp: gradients are reduced on a stream of their own"};

/// The streams of a device on which a sharded model communicates, so that its program's streams wait only for what they
/// use; nothing on the CPU.
struct ShardStreams {
  at::Device accelerator = at::kCPU;  ///< the CPU, if there is none
  device::Stream unshard = {};        ///< full parameters are gathered on it
  device::Stream reduce = {};         ///< gradients are reduced on it

  static ShardStreams of(at::Device device) {
    return {device, device::stream_from_pool(device), device::stream_from_pool(device)};
  }
};

}  // namespace muster::parallel
