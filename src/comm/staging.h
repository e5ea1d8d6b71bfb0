#pragma once

#include <vector>

#include "comm/operation.h"
#include "device/order.h"

namespace muster::comm {

/// The device of the tensors of an operation; the CPU if they are in host memory, or it has none.
at::Device device_of(const Operation& operation);

/// Runs an operation on tensors of a device as one on copies in pinned host memory, which go over a stream of their
/// own. Thread safety: one thread at a time.
class Staging {
 public:
  /// The copies come after what the device's current stream holds now. In the caller's thread.
  Staging(const Operation& operation, int rank, const device::Stream& stream);
  /// Gives the operation filled copies instead of its tensors; the thread waits for them.
  void to_host(Operation& operation);
  /// Gives the operation its own tensors back, with what it wrote; the thread waits for that. A gather in place does
  /// not write this rank's part, which may be read meanwhile. Tensors of Operation::results stay on the host.
  void to_device(Operation& operation);
  /// Moves Operation::results to the device, in memory of the current stream.
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
