#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/optim/detail/flat_source.h"
#include "muster/parallel/comm_hook.h"
#include "parallel/local.h"
#include "parallel/replicated/bucket_layout.h"

namespace muster::parallel {

/// One parameter of a replica.
struct ReplicaParameter {
  std::string name;
  at::Tensor tensor;
  optim::LocalParameter local;
  at::Tensor gradient;         ///< `local.gradient` with the parameter's sizes and strides
  const void* data = nullptr;  ///< the parameter's memory
  size_t bucket = 0;
};

/// A model's trainable parameters in flat memory, one allocation of values and one of gradients per dtype and device,
/// and the buckets into which gradients are divided. Space for flags follows the last bucket's gradients and is
/// communicated with them.
class Replica {
 public:
  /// Moves the parameters. Their handles, sizes, strides, versions and hooks stay.
  Replica(std::vector<NamedTensor> parameters, double first_bytes, double cap_bytes, int64_t flags);

  std::vector<ReplicaParameter>& parameters() noexcept { return parameters_; }
  const std::vector<ReplicaParameter>& parameters() const noexcept { return parameters_; }
  const BucketLayout& layout() const noexcept { return layout_; }
  /// The gradients of a bucket, 1-D.
  const std::vector<at::Tensor>& buckets() const noexcept { return buckets_; }
  /// 1-D, `flags` elements at the end of the last bucket; undefined without parameters.
  const at::Tensor& flags() const noexcept { return flags_; }
  const std::vector<at::Tensor>& values() const noexcept { return values_; }
  /// The gradients in the buckets: one with at least two dimensions as a matrix whose rows go along the dimension that
  /// is outermost in memory.
  std::vector<GradientBucket> hook_buckets() const;

 private:
  void allocate(const std::vector<at::TensorOptions>& kinds, int64_t flags);
  void place(size_t index, size_t kind);

  BucketLayout layout_;
  std::vector<ReplicaParameter> parameters_;
  std::vector<at::Tensor> values_, gradients_;  // per kind
  std::vector<at::Tensor> buckets_;
  at::Tensor flags_;
};

}  // namespace muster::parallel
