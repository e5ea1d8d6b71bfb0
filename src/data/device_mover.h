#pragma once

#include <deque>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "device/order.h"
#include "muster/data/detail/batch_box.h"

namespace muster::data {

/// A copy of a batch to the device.
struct BatchCopy {
  std::vector<at::Tensor> sources;  ///< what it reads, in the order of the batch; undefined: not ours to write again
  device::Event done;
};

/// Copies batches to an accelerator on a separate stream, so that copies overlap computing, from pinned memory that is
/// written again when its copies are done. Does nothing for the CPU.
/// Thread safety: one thread at a time.
class DeviceMover {
 public:
  /// `stream`: of the copies; nothing for the CPU. `pinned`: batches in other host memory are copied to pinned memory
  /// first.
  DeviceMover(at::Device device, device::Stream stream, bool pinned, bool non_blocking);
  bool active() const { return stream_.has_value(); }
  /// Starts copying after `made`. The box then holds the tensors on the device; use them only after finish().
  BatchCopy start(BatchBox& box, const device::Event& made = {});
  /// The device's current stream waits for the copies; the calling thread does not.
  void finish(BatchBox& box, const BatchCopy& copy);
  /// The calling thread waits for the copies from pinned memory that a dataset has kept, and may write when it is asked
  /// for the next batch.
  void wait_for_given();
  /// Keeps the memory from which a batch was copied. Requires: nobody uses the box any more.
  void keep(std::unique_ptr<BatchBox> box, BatchCopy copy);
  /// A box with memory that was kept and may be written; nullptr if no copy is known to be done.
  std::unique_ptr<BatchBox> take();

 private:
  struct Kept {
    std::unique_ptr<BatchBox> box;
    device::Event done;
  };

  at::Device device_;
  device::Event last_copy_;  // the last copy from such memory
  std::deque<Kept> kept_;    // in the order of their copies
  bool non_blocking_;
  bool pinned_;
  device::Stream stream_;
};

}  // namespace muster::data
