#pragma once

#include <deque>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "device/order.h"
#include "muster/data/detail/batch_box.h"

namespace muster::data {

/// A copy of a batch to the device, possibly still in progress.
struct BatchCopy {
  std::vector<at::Tensor> sources;  ///< source tensors in batch order; undefined where their memory must not be reused
  device::Event done;
};

/// Copies batches to an accelerator on a separate stream, so that copies overlap with computation. The copies start
/// from pinned memory, which is reused when they are done. Does nothing for the CPU.
/// Thread safety: one thread at a time. Why: docs/decisions/0144-batches-on-a-device.md.
class DeviceMover {
 public:
  /// `stream`: stream of the copies; nullopt for the CPU. `pinned`: copy batches in other host memory to pinned memory
  /// first.
  DeviceMover(at::Device device, device::Stream stream, bool pinned, bool non_blocking);
  bool active() const { return stream_.has_value(); }
  /// Starts copying after `made`. The box then holds the device tensors; use them only after finish().
  BatchCopy start(BatchBox& box, const device::Event& made = {});
  /// Makes the device's current stream wait for the copies; the calling thread does not wait.
  void finish(BatchBox& box, const BatchCopy& copy);
  /// The calling thread waits for copies from pinned memory that a dataset kept: the dataset may write to it when it is
  /// asked for the next batch.
  void wait_for_given();
  /// Keeps the memory from which a batch was copied, for reuse. Requires: nobody uses the box any more.
  void keep(std::unique_ptr<BatchBox> box, BatchCopy copy);
  /// A box whose kept memory may be reused; nullptr if no copy is known to be done.
  std::unique_ptr<BatchBox> take();

 private:
  struct Kept {
    std::unique_ptr<BatchBox> box;
    device::Event done;
  };

  at::Device device_;
  device::Event last_copy_;  // last copy from pinned memory that a dataset kept
  std::deque<Kept> kept_;    // kept boxes, in the order of their copies
  bool non_blocking_;
  bool pinned_;
  device::Stream stream_;
};

}  // namespace muster::data
