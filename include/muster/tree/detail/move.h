#pragma once

#include <ATen/core/Tensor.h>

#include "muster/tree/detail/visit.h"

namespace muster::tree {

/// Returns the tensor on the device: the tensor itself if it is already there, undefined if it is undefined.
/// `non_blocking`: a copy from pinned memory to an accelerator returns before it is complete; it is ordered on the
/// accelerator's current stream.
at::Tensor moved(const at::Tensor& tensor, at::Device device, bool non_blocking = false);

/// Moves every tensor of the value to the device, in place.
template <class T>
void move_to(T& value, at::Device device, bool non_blocking = false) {
  tree::visit(value, [&](at::Tensor& t) { t = moved(t, device, non_blocking); });
}

/// Returns the value with every tensor on the device.
template <class T>
T to(T value, at::Device device, bool non_blocking = false) {
  move_to(value, device, non_blocking);
  return value;
}

}  // namespace muster::tree
