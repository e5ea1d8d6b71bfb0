#pragma once

#include <optional>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "parallel/local.h"

namespace muster::parallel {

struct ShardGroups;

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

/// The buffers of a sharded module, which every rank has in full. Thread safety: the caller's.
class ModuleBuffers {
 public:
  /// Converts these buffers, and notes the dtypes in which they were built.
  void convert(const std::vector<at::Tensor>& buffers, at::ScalarType dtype);
  /// Sets the buffers that broadcast() sends.
  void adopt(const std::vector<NamedTensor>& buffers);
  /// The buffers get the main rank's values. Requires: adopt(). Collective.
  void broadcast(const ShardGroups& groups) const;
  /// The buffers get the values of a rank of the group. Requires: adopt(). Collective.
  void broadcast(const comm::Communicator& group, int root) const { broadcast_->run(group, root); }
  /// The dtype that the tensor had before convert(), if it was converted, or has.
  at::ScalarType built_dtype(const at::Tensor& tensor) const;

 private:
  std::optional<CoalescedBroadcast> broadcast_;
  std::unordered_map<const c10::TensorImpl*, at::ScalarType> built_dtypes_;  // of converted buffers, by impl
};

}  // namespace muster::parallel
