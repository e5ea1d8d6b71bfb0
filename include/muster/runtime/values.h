#pragma once

#include "muster/dist/communicator.h"
#include "muster/parallel/managed_model.h"
#include "muster/runtime/objects.h"
#include "muster/tree/visit.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster::runtime {

/// While it lives, gradients of some models stay local. Restores what was before it.
class [[nodiscard("name the scope: auto quiet = ...")]] NoSyncScope {
 public:
  NoSyncScope(std::vector<std::shared_ptr<parallel::ManagedModel>> models, bool enabled);
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;
  ~NoSyncScope();

 private:
  std::vector<std::pair<std::shared_ptr<parallel::ManagedModel>, bool>> before_;
};

/// How tensors are padded across ranks.
struct PadOptions {
  int64_t dim = 0;
  /// Padding goes in front instead of behind.
  bool pad_first = false;
  double value = 0;
};

// One tensor at a time. Collective: all of them.
at::Tensor gather_tensor(const dist::Communicator& group, const at::Tensor& tensor);
at::Tensor stack_tensor(const dist::Communicator& group, const at::Tensor& tensor);
at::Tensor reduce_tensor(const dist::Communicator& group, const at::Tensor& tensor, std::string_view op);
at::Tensor broadcast_tensor(const dist::Communicator& group, const at::Tensor& tensor, int source);
at::Tensor pad_tensor(const dist::Communicator& group, const at::Tensor& tensor, const PadOptions& options);
template <class... T>
auto gather(const dist::Communicator& group, const T&... values) {
  static_assert(sizeof...(T) > 0, "gather takes at least one value");
  auto one = [&](const auto& value) { return tree::transform(value, [&](const at::Tensor& t) { return gather_tensor(group, t); }); };
  if constexpr (sizeof...(T) == 1) return one(values...);
  else return std::tuple<T...>{one(values)...};
}

template <class T>
T all_gather(const dist::Communicator& group, const T& value) {
  return tree::transform(value, [&](const at::Tensor& t) { return stack_tensor(group, t); });
}

template <class T>
T reduce(const dist::Communicator& group, const T& value, std::string_view op) {
  return tree::transform(value, [&](const at::Tensor& t) { return reduce_tensor(group, t, op); });
}

template <class T>
T broadcast(const dist::Communicator& group, const T& value, int source) {
  if constexpr (tree::plain_leaf<T>) {
    return broadcast_object(group, value, source);
  } else {
    return tree::transform(value, [&](const at::Tensor& t) { return broadcast_tensor(group, t, source); });
  }
}

template <class T>
T pad_across_processes(const dist::Communicator& group, const T& value, const PadOptions& options) {
  return tree::transform(value, [&](const at::Tensor& t) { return pad_tensor(group, t, options); });
}

}  // namespace muster::runtime
