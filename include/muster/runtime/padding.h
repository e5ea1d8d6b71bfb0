#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "muster/runtime/detail/values.h"

namespace muster {

/// How pad_across_processes() pads tensors.
struct PadOptions {
  int64_t dim = 0;         ///< the dimension in which tensors differ
  bool pad_first = false;  ///< put the padding in front instead of behind
  double value = 0;        ///< the value of the padding
};

namespace runtime {

// Takes one tensor, which must be defined. Collective.
at::Tensor pad_tensor(const comm::Communicator& group, const at::Tensor& tensor, const PadOptions& options);

template <class T>
T pad_across_processes(const comm::Communicator& group, const T& value, const PadOptions& options) {
  return each_leaf(group, "pad_across_processes", value,
                   [&](const auto& leaf, const at::Tensor& t) { return pad_tensor(leaf, t, options); });
}

}  // namespace runtime
}  // namespace muster
