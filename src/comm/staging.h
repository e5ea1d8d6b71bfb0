#pragma once

#include <vector>

#include "comm/operation.h"
#include "device/order.h"

namespace muster::comm {

/// The device of the operation's tensors; the CPU if they are in host memory, or if there are none.
at::Device device_of(const Operation& operation);

/// Runs an operation on device tensors by means of copies in pinned host memory, which are transferred on a separate
/// stream. Thread safety: one thread at a time.
class Staging {
 public:
  /// Starts the copies after what the device's current stream holds now. Call it in the caller's thread.
  Staging(const Operation& operation, int rank, const device::Stream& stream);
  /// Gives the operation filled host copies instead of its tensors. The thread waits for the copies.
  void to_host(Operation& operation);
  /// Gives the operation its own tensors back, with the values that it wrote. The thread waits for that. An in-place
  /// gather does not write this rank's part, which may be read meanwhile. Tensors of Operation::results stay on the
  /// host.
  void to_device(Operation& operation);
  /// Moves Operation::results to the device, into memory of the current stream.
  void move_results(Operation& operation) const;

 private:
  int rank_;
  device::Stream stream_;
  at::Device device_;
  device::Event last_copy_;
  at::Tensor in_, out_;
  std::vector<at::Tensor> parts_;
};

}  // namespace muster::comm
