#pragma once

#include <c10/util/Exception.h>

#include "prepared_optimizer.h"
#include "runtime/prepared_model.h"

namespace muster::runtime {

/// Adds to an out-of-memory error of the device, once, who holds the memory (MU576); leaves other errors as they are.
/// Requires: the error is being handled. Why: docs/decisions/0156-who-holds-a-devices-memory.md.
void add_memory_owners(c10::Error& error, at::Device device, const std::vector<std::shared_ptr<PreparedModel>>& models,
                       const PreparedOptimizers& optimizers);

/// Runs f. Passes LibTorch's errors to `add_context` before they leave.
template <class AddContext, class F>
decltype(auto) with_error_context(const AddContext& add_context, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (c10::Error& error) {
    add_context(error);
    throw;
  }
}

}  // namespace muster::runtime
