#pragma once

#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>

#include <c10/util/FunctionRef.h>

#include "muster/runtime/model.h"

namespace muster {

namespace runtime {
/// Type-erased outside_forward().
void outside_forward_scope(PreparedModel& model, c10::function_ref<void()> f);
}  // namespace runtime

/// Runs `f` with the open forward scopes of the model closed, and opens them again: for code inside of model.run() that
/// is no forward, such as an optimizer's step. If no scope is open, it just calls `f`. backward() closes and opens the
/// scopes of all models itself.
/// Requires: autocast scopes that were opened inside of the forward have ended.
/// Throws: what `f` throws; what opening a forward throws. The scopes then stay closed: let the exception leave them.
/// Collective: as the forward, under strategies that shard parameters.
template <class M, std::invocable<> F>
auto outside_forward(const Model<M>& model, F&& f) {
  if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
    runtime::outside_forward_scope(*model.prepared(), [&] { std::forward<F>(f)(); });
  } else {
    std::optional<std::invoke_result_t<F>> result;
    runtime::outside_forward_scope(*model.prepared(), [&] { result.emplace(std::forward<F>(f)()); });
    return *std::move(result);
  }
}

}  // namespace muster
