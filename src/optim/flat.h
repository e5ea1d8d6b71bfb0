#pragma once  // for other rooms

#include <ATen/core/Tensor.h>

#include "muster/optim/flat_parameters.h"

namespace muster::optim {

/// `count` elements of the tensor's memory, from element `offset` after its start, as a 1-D tensor that autograd and
/// the tensor's version counter do not know of.
at::Tensor flat_alias(const at::Tensor& tensor, int64_t offset, int64_t count);
/// Makes an alias point at the memory of another tensor of the same dtype and device.
void point_at(const at::Tensor& alias, const at::Tensor& target, int64_t offset);
/// A flat_alias() with the sizes and strides of `like`.
at::Tensor shaped_alias(const at::Tensor& flat, int64_t offset, const at::Tensor& like);
/// Whether the tensor's elements fill one range of memory without gaps or overlaps.
bool is_dense(const at::Tensor& tensor);
bool same_layout(const at::Tensor& a, const at::Tensor& b);
/// Whether `b` begins where `a` ends, in the same storage.
bool follows(const at::Tensor& a, const at::Tensor& b);

/// A second base class of the watcher of a sharded parameter's storage: it leads from the parameter to its values.
class ParameterOwner {
 public:
  virtual ~ParameterOwner() = default;
  virtual FlatParameters& flat_parameters() noexcept = 0;
};

}  // namespace muster::optim
