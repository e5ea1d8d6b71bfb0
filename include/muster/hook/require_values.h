#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace muster::hook {

/// For what reads bytes without an operator: the watcher of this tensor's storage hears of `op`, as of an operator that reads it and has
/// ended. Nothing for a tensor that nobody watches. Throws: as StorageWatcher::before_touch().
void require_values(const at::Tensor& tensor, const std::string& op);

}  // namespace muster::hook
