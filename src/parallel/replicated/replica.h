#pragma once

#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/optim/flat_parameters.h"
#include "muster/parallel/comm_hook.h"
#include "parallel/local.h"
#include "parallel/replicated/bucket_layout.h"

namespace muster::parallel {

/// A 1-D tensor of so many zeros.
using Zeros = std::function<at::Tensor(int64_t elements, const at::TensorOptions& options)>;

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
/// communicated with them; on a device, flags are in host memory. Parameters that are added later have allocations and
/// buckets of their own.
class Replica {
 public:
  /// Moves the parameters. Their handles, sizes, strides, versions and hooks stay.
  /// `zeros` makes the memory of gradients.
  Replica(std::vector<NamedTensor> parameters, double first_bytes, double cap_bytes, int64_t flags, Zeros zeros);

  /// Moves these parameters too, into memory and buckets after the others, which stay where they are; the space for
  /// flags goes to the new last bucket.
  void append(std::vector<NamedTensor> parameters, double cap_bytes, int64_t flags);

  /// Those that were appended follow the others. None moves within the list.
  std::deque<ReplicaParameter>& parameters() noexcept { return parameters_; }
  const std::deque<ReplicaParameter>& parameters() const noexcept { return parameters_; }
  /// Before gradient i is written anew: if somebody has kept the tensor that showed the last one, it becomes a copy.
  void release_kept_gradient(size_t i);
  /// nullptr for a tensor that is none of them.
  const ReplicaParameter* find(const at::Tensor& tensor) const;
  const BucketLayout& layout() const noexcept { return layout_; }
  /// The gradients of a bucket, 1-D.
  const std::vector<at::Tensor>& buckets() const noexcept { return buckets_; }
  /// 1-D, `flags` elements at the end of the last bucket, or apart from it; undefined without parameters.
  const at::Tensor& flags() const noexcept { return flags_; }
  bool flags_are_apart() const noexcept { return flags_are_apart_; }
  /// Of the last bucket; the CPU without parameters.
  at::Device device() const { return buckets_.empty() ? at::Device(at::kCPU) : buckets_.back().device(); }
  const std::vector<at::Tensor>& values() const noexcept { return values_; }
  /// The gradients in the buckets: one with at least two dimensions as a matrix whose rows go along the dimension that
  /// is outermost in memory.
  std::vector<GradientBucket> hook_buckets() const;

 private:
  void add(std::vector<NamedTensor> parameters, double first_bytes, double cap_bytes, int64_t flags);
  void allocate(size_t first_bucket, const std::vector<at::TensorOptions>& kinds, int64_t flags);
  void place(size_t index, size_t kind);

  const Zeros zeros_;
  BucketLayout layout_;
  std::deque<ReplicaParameter> parameters_;
  std::unordered_map<c10::TensorImpl*, size_t> index_;  // by impl, the identity of a tensor
  std::vector<at::Tensor> values_, gradients_;          // per kind of each set that was added
  std::vector<at::Tensor> buckets_;
  at::Tensor flags_;
  bool flags_are_apart_ = false;
};

}  // namespace muster::parallel
