#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::checkpoint {

/// A range of bytes in CPU memory and its destination.
struct ByteCopy {
  char* to;
  const char* from;
  std::size_t bytes;
};

/// Copies all ranges in large pieces, on LibTorch's intra-op threads.
/// Requires: no two ranges write the same byte.
void copy_bytes(const std::vector<ByteCopy>& copies);

/// Whether the tensor's values are in CPU memory in the order of its elements, without gaps, and its operators are not
/// intercepted. Those of a sharded model's parameters are: only operators, which wait or refuse, may read and write
/// them.
bool is_plain(const at::Tensor& tensor);

}  // namespace muster::checkpoint
