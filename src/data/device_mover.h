#pragma once

#include <c10/core/Device.h>

#include "muster/data/detail/batch_maker.h"
#include "muster/device/detail/order.h"

namespace muster::data {

/// Copies batches to an accelerator on a separate stream, so that copies overlap computing. Does nothing for the CPU.
/// Thread safety: one thread at a time.
class DeviceMover {
 public:
  DeviceMover(at::Device device, bool non_blocking);
  bool active() const { return stream_.has_value(); }
  /// Starts copying. The box then holds the tensors on the device; use them only after finish().
  void start(BatchBox& box);
  /// The device's current stream waits for the copies of start(); the calling thread does not.
  void finish(BatchBox& box);

 private:
  at::Device device_;
  device::Event done_;
  bool non_blocking_;
  device::Stream stream_;
};

}  // namespace muster::data
