#pragma once  // for other rooms

#include <string>

#include <ATen/core/Tensor.h>

namespace muster::hook {

/// For code that reads bytes without an operator: notifies the watcher of this tensor's storage as if an operator named
/// `op` had read the tensor and ended. Does nothing for an unwatched tensor. Throws: what
/// StorageWatcher::before_access() throws.
void require_values(const at::Tensor& tensor, const std::string& op);

}  // namespace muster::hook
