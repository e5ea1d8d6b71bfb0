#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "prepared_optimizer.h"
#include "runtime/prepared_model.h"

namespace muster::runtime {

/// Adds to an error for want of the device's memory who holds it (MU576), once; leaves other errors as they are.
/// Requires: the error is being handled.
void add_memory_owners(c10::Error& error, at::Device device, const std::vector<std::shared_ptr<PreparedModel>>& models,
                       const PreparedOptimizers& optimizers);

/// Runs f. LibTorch's errors are given to `add_context` on their way.
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
