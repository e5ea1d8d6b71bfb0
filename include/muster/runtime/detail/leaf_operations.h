#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/tree/detail/visit.h"

namespace muster::comm {
class Communicator;
}

namespace muster::runtime {

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
  struct State;
  std::shared_ptr<State> state_;
};

/// Returns the value with every tensor t replaced by f(group, t). Collective.
template <class T, class F>
T each_leaf(const comm::Communicator& group, std::string_view operation, const T& value, F&& f, int source = -1) {
  LeafOperations operations(group, operation, tree::leaves_of(value), tree::varies<T>, source);
  auto result = tree::transform(value, [&](const at::Tensor& tensor) { return f(operations.next(), tensor); });
  operations.finish();
  return result;
}

}  // namespace muster::runtime
