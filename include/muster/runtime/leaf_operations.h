#pragma once

#include "muster/dist/communicator.h"
#include "muster/tree/leaves.h"
#include "muster/tree/visit.h"

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace muster::runtime {

/// Numbers what ranks do for the tensors of one value, so that a rank whose value has others can tell.
class LeafOperations {
 public:
  /// With `varies`, ranks first compare where their tensors are. With a `source`, tensors need be defined on that rank only.
  /// Throws: UsageError (MU065), on every rank, if they are not in the same places; (MU177) if one is undefined.
  /// Collective: with `varies`.
  LeafOperations(const dist::Communicator& group, std::string_view verb, std::vector<tree::Leaf> leaves, bool varies,
                 int source = -1);

  /// The group, for what is done for the next leaf.
  dist::Communicator next();

 private:
  dist::Communicator group_;
  dist::Tag tag_;
};

/// The value with every tensor t replaced by f(group, t). Collective.
template <class T, class F>
T each_leaf(const dist::Communicator& group, std::string_view verb, const T& value, F&& f, int source = -1) {
  LeafOperations operations(group, verb, tree::leaves_of(value), tree::varies<T>, source);
  return tree::transform(value, [&](const at::Tensor& tensor) { return f(operations.next(), tensor); });
}

}  // namespace muster::runtime
