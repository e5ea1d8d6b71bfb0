#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "format/safetensors.h"

namespace muster::checkpoint {

/// LibTorch's type with the same bits; nullopt if there is none.
std::optional<at::ScalarType> scalar_type(format::ElementType type);

/// The tensor's description in a file. LibTorch counts pairs of 4-bit elements, the format counts elements.
/// Throws: CheckpointError MU203 if the format cannot hold the tensor; `file` is for the message.
format::TensorSpec spec_of(const std::string& name, const at::Tensor& tensor, const std::string& file);

/// The shape in LibTorch of a tensor in a file.
/// Throws: CheckpointError MU207 if LibTorch has no such type.
std::vector<int64_t> shape_of(const format::TensorSpec& entry, const std::string& file);

/// Type and shape: "F32 [2, 3]".
std::string description(const at::Tensor& tensor);

}  // namespace muster::checkpoint
