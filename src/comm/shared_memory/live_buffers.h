#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/shared_memory/shared_buffer.h"

namespace muster::comm {

/// The buffers of a group that tensors still use, from the point of view of one rank.
class LiveBuffers {
 public:
  explicit LiveBuffers(int rank) : rank_(static_cast<std::size_t>(rank)) {}

  void add(const std::shared_ptr<SharedBuffer>& buffer);
  /// The buffer that contains all of the rank's tensor; null if there is none.
  std::shared_ptr<SharedBuffer> of(const at::Tensor& tensor) const;

 private:
  const std::size_t rank_;
  std::vector<std::weak_ptr<SharedBuffer>> buffers_;
};

}  // namespace muster::comm
