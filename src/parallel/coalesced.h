#pragma once

#include "muster/dist/communicator.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster::parallel {

/// Gives many small tensors the values of one rank in one message per device.
/// Values change under autograd's eye: versions stay, so that graphs that have saved a buffer can still run backward.
class CoalescedBroadcast {
 public:
  explicit CoalescedBroadcast(std::vector<at::Tensor> tensors);
  bool empty() const { return messages_.empty(); }
  /// Collective.
  void run(const dist::Communicator& group, int root = 0) const;

 private:
  struct Message {
    at::Tensor bytes;
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor> places;   // in `bytes`, with the tensors' dtypes and shapes
  };
  std::vector<Message> messages_;
};

}  // namespace muster::parallel
