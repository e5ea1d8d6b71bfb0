#pragma once

#include <ATen/core/Tensor.h>

#include "muster/data/detail/batch_box.h"

namespace muster::data {

/// Whether the tensor's memory may be reused: no other tensor, view, saved variable or foreign owner can see it.
bool is_ours_alone(const at::Tensor& tensor);

/// Drops the tensors whose memory may not be reused.
void drop_shared_tensors(BatchBox& box);

}  // namespace muster::data
