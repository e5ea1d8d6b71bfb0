#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/tree/detail/leaves.h"
#include "muster/tree/detail/visit.h"

namespace muster::comm {
class Communicator;
}

namespace muster::runtime {

/// Numbers the collectives for the tensors of one value, so that a rank whose value has different tensors is detected.
class LeafOperations {
 public:
  /// With a backend of a device, ranks first compare what they have given to it, since the values may come from there.
  /// With `varies`, they compare where their tensors are. With a `source`, tensors must be defined on that rank only.
  /// Throws: CommError (MU050), on every rank, if operations of devices differ; UsageError (MU065), on every rank, if
  /// tensors are not in the same places; (MU177) if one is undefined. Collective: where ranks compare.
  LeafOperations(const comm::Communicator& group, std::string_view operation, std::vector<tree::Leaf> leaves,
                 bool varies, int source = -1);

  /// Returns the group for the collective of the next leaf; valid until the next call.
  const comm::Communicator& next();
  /// After the last one: with a backend of a device, ranks compare what they have given to it, before the results are
  /// read. Throws: CommError (MU050), on every rank. Collective.
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
