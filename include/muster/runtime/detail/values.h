#pragma once

#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include "muster/comm/communicator.h"
#include "muster/tree/detail/pack.h"
#include "muster/tree/detail/visit.h"

namespace muster::parallel {
class ManagedModel;
}

/// Values that are sent as bytes: strings, numbers, tensors and structures of them; see tree/detail/pack.h.
namespace muster::runtime {

/// Returns the packed values of all ranks, in rank order. Collective.
std::vector<at::Tensor> gather_packed(const comm::Communicator& group, const at::Tensor& packed);
/// Returns the packed value of rank `source`; `packed` is read on that rank only. Collective.
at::Tensor broadcast_packed(const comm::Communicator& group, const at::Tensor& packed, int source);

/// Returns the value of rank `source`. Collective.
template <class T>
T broadcast_object(const comm::Communicator& group, const T& value, int source) {
  if (group.size() == 1) return value;
  const bool here = group.rank() == source;
  const auto packed = broadcast_packed(group, here ? tree::pack(value) : at::Tensor(), source);
  return here ? value : tree::unpack<T>(packed);
}

/// Returns the values of all ranks, in rank order. Collective.
template <class T>
std::vector<T> gather_object(const comm::Communicator& group, const T& value) {
  std::vector<T> all;
  for (const auto& packed : gather_packed(group, tree::pack(value))) all.push_back(tree::unpack<T>(packed));
  return all;
}

/// Returns the elements of all ranks' lists, joined in rank order; lists may have different lengths. Collective.
template <class T>
std::vector<T> gather_object(const comm::Communicator& group, const std::vector<T>& values) {
  std::vector<T> all;
  for (const auto& packed : gather_packed(group, tree::pack(values)))
    for (auto&& element : tree::unpack<std::vector<T>>(packed)) all.push_back(std::move(element));
  return all;
}

/// Numbers the collectives for the tensors of one value, to detect ranks whose value has other tensors.
class LeafOperations {
 public:
  /// With a device backend, ranks first compare the operations that they have started on it, since the values may come
  /// from there. With `varies`, they compare the places of their tensors. With a `source`, tensors need to be defined
  /// on that rank only.
  /// Throws: CommError (MU050), on every rank, if device operations differ; UsageError (MU065), on every rank, if
  /// tensors are in different places; (MU177) if one is undefined. Collective: if ranks compare.
  LeafOperations(const comm::Communicator& group, std::string_view operation, std::vector<tree::Leaf> leaves,
                 bool varies, int source = -1);

  /// Returns the group for the collective of the next leaf; valid until the next call.
  const comm::Communicator& next();
  /// Call it after the last leaf. With a device backend, ranks compare the operations that they have started on it,
  /// before the results are read. Throws: CommError (MU050), on every rank. Collective.
  void finish() const;

 private:
  comm::Communicator group_, current_;
  comm::OperationLabel label_;
};

/// Returns the value with every tensor t replaced by f(group, t). Collective.
template <class T, class F>
T each_leaf(const comm::Communicator& group, std::string_view operation, const T& value, F&& f, int source = -1) {
  LeafOperations operations(group, operation, tree::leaves_of(value), tree::varies<T>, source);
  auto result = tree::transform(value, [&](const at::Tensor& tensor) { return f(operations.next(), tensor); });
  operations.finish();
  return result;
}

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
