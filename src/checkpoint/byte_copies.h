#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace muster::checkpoint {

/// Bytes in the CPU's memory and where they go.
struct ByteCopy {
  char* to;
  const char* from;
  std::size_t bytes;
};

/// Copies all in large pieces, on the threads of LibTorch's operators.
/// Requires: no two of them write the same byte.
void copy_bytes(const std::vector<ByteCopy>& copies);

/// Whether the tensor's values lie in the CPU's memory just as its elements follow each other, and nobody watches its operators (a
/// sharded model does: its parameters are read and written by operators only, which wait or refuse).
bool is_plain(const at::Tensor& tensor);

}  // namespace muster::checkpoint
