#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/shared_memory/shared_buffer.h"

namespace muster::comm {

/// The buffers of a group that tensors still use, as one of its ranks sees them.
class LiveBuffers {
 public:
  explicit LiveBuffers(int rank) : rank_(static_cast<std::size_t>(rank)) {}

  void add(const std::shared_ptr<SharedBuffer>& buffer);
  /// The buffer in which all of the rank's tensor is; null if none.
  std::shared_ptr<SharedBuffer> of(const at::Tensor& tensor) const;

 private:
  const std::size_t rank_;
  std::vector<std::weak_ptr<SharedBuffer>> buffers_;
};

}  // namespace muster::comm
