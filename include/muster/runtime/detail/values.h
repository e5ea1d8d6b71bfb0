#pragma once

#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include "muster/runtime/detail/leaf_operations.h"
#include "muster/runtime/detail/objects.h"
#include "muster/tree/detail/visit.h"

namespace muster::parallel {
class ManagedModel;
}

namespace muster::runtime {

/// Keeps gradients of some models local while it lives; its destructor restores the earlier setting.
class [[nodiscard("name the scope: auto quiet = ...")]] NoSyncScope {
 public:
  NoSyncScope(const std::vector<std::shared_ptr<parallel::ManagedModel>>& models, bool enabled);
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;
  ~NoSyncScope();

 private:
  std::vector<std::pair<std::shared_ptr<parallel::ManagedModel>, bool>> before_;
};

// Each function takes one tensor, which must be defined, except in broadcast on the receiving ranks. Collective: all of
// them.
at::Tensor gather_tensor(const comm::Communicator& group, const at::Tensor& tensor);
at::Tensor stack_tensor(const comm::Communicator& group, const at::Tensor& tensor);
at::Tensor reduce_tensor(const comm::Communicator& group, const at::Tensor& tensor, std::string_view op);
at::Tensor broadcast_tensor(const comm::Communicator& group, const at::Tensor& tensor, int source);

template <class... T>
auto gather(const comm::Communicator& group, const T&... values) {
  static_assert(sizeof...(T) > 0, "gather takes at least one value");
  static_assert((!tree::plain_leaf<T> && ...), "gather joins tensors; for numbers and texts call gather_object");
  if constexpr (sizeof...(T) == 1) return each_leaf(group, "gather", (values, ...), gather_tensor);
  else return each_leaf(group, "gather", std::tuple<T...>(values...), gather_tensor);
}

template <class T>
T all_gather(const comm::Communicator& group, const T& value) {
  return each_leaf(group, "all_gather", value, stack_tensor);
}

template <class T>
T reduce(const comm::Communicator& group, const T& value, std::string_view op) {
  if constexpr (tree::plain_leaf<T>) {
    static_assert(std::is_arithmetic_v<T>, "reduce takes tensors and numbers; for texts call gather_object");
    const auto number = at::scalar_tensor(value, std::is_floating_point_v<T> ? at::kDouble : at::kLong);
    return reduce(group, number, op).template item<T>();
  } else {
    return each_leaf(group, "reduce", value,
                     [&](const auto& leaf, const at::Tensor& t) { return reduce_tensor(leaf, t, op); });
  }
}

template <class T>
T broadcast(const comm::Communicator& group, const T& value, int source) {
  if constexpr (tree::plain_leaf<T>) {
    return broadcast_object(group, value, source);
  } else {
    return each_leaf(
        group, "broadcast", value,
        [&](const auto& leaf, const at::Tensor& t) { return broadcast_tensor(leaf, t, source); }, source);
  }
}

}  // namespace muster::runtime
