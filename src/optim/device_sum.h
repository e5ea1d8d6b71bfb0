#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "optim/exact_sum.h"

namespace muster::optim {

/// As add_powers(), of the elements of all tensors, which are 1-D and on one device. Runs by LibTorch's operators on
/// the device, whatever its kind, to the bits of the CPU for p = 1 and 2. The host waits once, for the words.
void add_device_powers(ExactSum& sum, const std::vector<at::Tensor>& tensors, double p);

}  // namespace muster::optim
