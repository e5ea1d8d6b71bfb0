#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "muster/runtime/detail/gathering.h"
#include "muster/runtime/detail/leaf_operations.h"

namespace muster::runtime {

/// How tensors are padded across ranks.
struct PadOptions {
  int64_t dim = 0;
  /// Put the padding in front instead of behind.
  bool pad_first = false;
  double value = 0;
};

// Takes one tensor, which must be defined. Collective.
at::Tensor pad_tensor(const comm::Communicator& group, const at::Tensor& tensor, const PadOptions& options);

template <class T>
T pad_across_processes(const comm::Communicator& group, const T& value, const PadOptions& options) {
  return each_leaf(group, "pad_across_processes", value,
                   [&](const auto& leaf, const at::Tensor& t) { return pad_tensor(leaf, t, options); });
}

template <class T>
T Gathering::pad_across_processes(const T& value, const extra_t<T, PadOptions>& options) const {
  return runtime::pad_across_processes(group_of(*state_), value, options);
}

}  // namespace muster::runtime
