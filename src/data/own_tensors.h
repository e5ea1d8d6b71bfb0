#pragma once

#include <ATen/core/Tensor.h>

#include "muster/data/detail/batch_box.h"

namespace muster::data {

/// Whether its memory may be written again: nobody else can see it, no other tensor, view or saved variable, and no
/// foreign owner has it.
bool is_ours_alone(const at::Tensor& tensor);

/// Leaves only tensors whose memory may be written again.
void drop_shared_tensors(BatchBox& box);

}  // namespace muster::data
