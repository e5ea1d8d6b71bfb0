#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::comm {

/// The bytes as a tensor, which must not outlive them.
at::Tensor bytes_tensor(const std::string& bytes);
/// Empty for an undefined tensor.
std::string to_bytes(const at::Tensor& tensor);
std::vector<std::string> to_bytes(const std::vector<at::Tensor>& tensors);

}  // namespace muster::comm
