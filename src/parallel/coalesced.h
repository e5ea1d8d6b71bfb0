#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"

namespace muster::parallel {

/// Broadcasts many small tensors from one rank, with one message per device. Autograd does not see the change: versions
/// stay, so graphs that have saved a buffer can still run backward.
class CoalescedBroadcast {
 public:
  explicit CoalescedBroadcast(std::vector<at::Tensor> tensors);
  bool empty() const { return messages_.empty(); }
  /// Collective.
  void run(const comm::Communicator& group, int root = 0) const;

 private:
  struct Message {
    at::Tensor bytes;
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor> places;  // views of `bytes` with the tensors' dtypes and shapes
  };
  std::vector<Message> messages_;
};

}  // namespace muster::parallel
