#pragma once

#include "muster/data/batch_maker.h"

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

namespace muster::data {

/// Copies batches to an accelerator on a stream of its own, so that copying overlaps with computing. Does nothing for the CPU.
/// Thread safety: one thread at a time.
class DeviceMover {
 public:
  DeviceMover(at::Device device, bool non_blocking);
  bool active() const { return stream_.has_value(); }
  /// Starts copying; the box then holds the tensors on the device, which may be used after finish().
  void start(BatchBox& box);
  /// The device's current stream waits for what start() began; the calling thread does not.
  void finish(BatchBox& box);

 private:
  at::Device device_;
  std::optional<c10::Event> done_;
  bool non_blocking_;
  std::optional<c10::Stream> stream_;
};

}  // namespace muster::data
