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

/// Closes the open forward scopes of the model, runs `f`, and reopens them: for code inside model.run() that is not
/// part of a forward, such as an optimizer's step. If no scope is open, it only calls `f`. backward() closes and
/// reopens the scopes of all models itself.
/// Requires: autocast scopes that were opened inside the forward have ended.
/// Throws: what `f` throws; what opening a forward throws. The scopes then stay closed: let the exception propagate out
/// of them.
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
