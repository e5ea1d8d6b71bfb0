#pragma once  // for other rooms

#include <string>

#include <ATen/core/Tensor.h>

namespace muster::hook {

/// For code that reads bytes without an operator: notifies the watcher of this tensor's storage of `op`, as of an
/// operator that reads the tensor and has ended. Does nothing for an unwatched tensor. Throws: as
/// StorageWatcher::before_access().
void require_values(const at::Tensor& tensor, const std::string& op);

}  // namespace muster::hook
