#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace muster::tree {

/// The place of a sample in its batch.
struct StackPlace {
  int64_t count = 0;    ///< samples in the batch
  int64_t index = 0;    ///< this sample's row
  bool pinned = false;  ///< allocate the batch in pinned memory, for copies to an accelerator
};

/// Makes `tensor` a contiguous tensor of these sizes and dtype, on the CPU unless `options` names another device. Keeps
/// its memory if it is large enough; the values are then unspecified. Requires: nothing else uses that memory.
void ensure_tensor(at::Tensor& tensor, at::IntArrayRef sizes, at::TensorOptions options);

/// Copies the sample into its row; row 0 allocates the batch. Gradients do not flow through the copy.
/// Throws: UsageError (MU100) if shape or dtype differ from the first sample's, or if it is undefined or sparse.
void stack_tensor(at::Tensor& batch, const at::Tensor& sample, const StackPlace& place);

/// Copies a number into its row of a 1-D tensor, with the dtype that torch::tensor gives it: int64, bool, or the
/// default dtype.
void stack_integer(at::Tensor& batch, int64_t value, const StackPlace& place);
void stack_real(at::Tensor& batch, double value, const StackPlace& place);
void stack_bool(at::Tensor& batch, bool value, const StackPlace& place);

/// Throws: UsageError (MU100), naming what differs and the sample's place.
[[noreturn]] void throw_uneven(const std::string& what, const StackPlace& place);

}  // namespace muster::tree
