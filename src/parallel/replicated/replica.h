#pragma once

#include <deque>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "muster/optim/flat_parameters.h"
#include "muster/parallel/comm_hook.h"
#include "parallel/local.h"

namespace muster::parallel {

struct BucketItem {
  int64_t elements = 0;  ///< number of elements with padding
  int64_t element_size = 0;
  size_t kind = 0;  ///< number of its dtype and device; items of one kind share flat memory
};

struct BucketSpan {
  size_t kind = 0;
  int64_t begin = 0;  ///< first element in the flat memory of the kind
  int64_t length = 0;
  std::vector<size_t> items;
};

struct BucketLayout {
  std::vector<BucketSpan> buckets;  ///< in the order in which they are communicated
  std::vector<int64_t> offsets;     ///< offset of each item in the flat memory of its kind
  std::vector<int64_t> totals;      ///< number of elements per kind
};

/// Assigns items to buckets, from the last item to the first (roughly the order in which backward reaches them). A
/// bucket has one kind and at most `cap_bytes` (the first: `first_bytes`); a larger item gets a bucket for itself. The
/// result depends only on the arguments, so it is equal on every rank.
BucketLayout assign_buckets(const std::vector<BucketItem>& items, double first_bytes, double cap_bytes);

/// Adds the layout of further items after those of `to`. Its kinds are numbered after those of `to`.
void append_layout(BucketLayout& to, const BucketLayout& more);

/// Makes a 1-D tensor of that many zeros.
using Zeros = std::function<at::Tensor(int64_t elements, const at::TensorOptions& options)>;

/// One parameter of a replica.
struct ReplicaParameter {
  std::string name;
  at::Tensor tensor;
  optim::LocalParameter local;
  at::Tensor gradient;         ///< view of `local.gradient` with the parameter's sizes and strides
  const void* data = nullptr;  ///< address of the parameter's memory
  size_t bucket = 0;
};

/// A model's trainable parameters in flat memory, with one allocation of values and one of gradients per dtype and
/// device, and the buckets into which gradients are divided. Space for flags follows the last bucket's gradients and is
/// communicated with them; on a device, flags are in host memory. Parameters that are added later have separate
/// allocations and buckets.
class Replica {
 public:
  /// Moves the parameters. Their handles, sizes, strides, versions and hooks stay. `zeros` makes the memory of
  /// gradients.
  Replica(std::vector<NamedTensor> parameters, double first_bytes, double cap_bytes, int64_t flags, Zeros zeros);

  /// Also moves these parameters, into memory and buckets after the others, which stay where they are. The space for
  /// flags moves to the new last bucket.
  void append(std::vector<NamedTensor> parameters, double first_bytes, double cap_bytes, int64_t flags);

  /// The parameters; appended ones follow the others. No element moves within the list.
  std::deque<ReplicaParameter>& parameters() noexcept { return parameters_; }
  const std::deque<ReplicaParameter>& parameters() const noexcept { return parameters_; }
  /// Call it before gradient i is overwritten: if somebody has kept the tensor that showed the last one, it becomes a
  /// copy.
  void release_kept_gradient(size_t i);
  /// The entry of the parameter; nullptr for any other tensor.
  const ReplicaParameter* find(const at::Tensor& tensor) const;
  const BucketLayout& layout() const noexcept { return layout_; }
  /// The gradients of a bucket, 1-D.
  const std::vector<at::Tensor>& buckets() const noexcept { return buckets_; }
  /// A 1-D tensor of `flags` elements at the end of the last bucket, or separate from it; undefined without parameters.
  const at::Tensor& flags() const noexcept { return flags_; }
  bool flags_are_apart() const noexcept { return flags_are_apart_; }
  /// The device of the last bucket; the CPU if there are no parameters.
  at::Device device() const { return buckets_.empty() ? at::Device(at::kCPU) : buckets_.back().device(); }
  const std::vector<at::Tensor>& values() const noexcept { return values_; }
  /// The gradients in the buckets. A gradient with at least two dimensions is shown as a matrix whose rows go along the
  /// dimension that is outermost in memory.
  std::vector<GradientBucket> hook_buckets() const;

 private:
  void allocate(size_t first_bucket, const std::vector<at::TensorOptions>& kinds, int64_t flags);
  void place(size_t index, size_t kind);

  const Zeros zeros_;
  BucketLayout layout_;
  std::deque<ReplicaParameter> parameters_;
  std::unordered_map<c10::TensorImpl*, size_t> index_;  // by impl, which is the identity of a tensor
  std::vector<at::Tensor> values_, gradients_;          // per kind, for each set of parameters that was added
  std::vector<at::Tensor> buckets_;
  at::Tensor flags_;
  bool flags_are_apart_ = false;
};

}  // namespace muster::parallel
