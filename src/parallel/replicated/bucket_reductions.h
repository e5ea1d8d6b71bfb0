#pragma once

#include <ATen/core/Tensor.h>

#include "device/order.h"
#include "muster/comm/communicator.h"
#include "muster/parallel/comm_hook.h"
#include "parallel/reduction_record.h"
#include "parallel/replicated/replica.h"

namespace muster::parallel {

/// The reductions of a replica's buckets: which gradients each bucket still waits for, and what was started. Buckets
/// start in their order, each once, and are waited for together. A CommHook communicates them in place of an
/// all_reduce. The last one brings the flags; under a CommHook, and on a device, they have a separate message.
///
/// On a device, buckets are communicated on a stream of their own, after all streams that have written them.
/// `step` is the step that other ranks must be in; -1: any. Thread safety: the caller's.
class BucketReductions {
 public:
  /// Requires: replica and group outlive this object. `hook`: nullptr for all_reduce.
  BucketReductions(std::string model, const Replica& replica, const comm::Communicator& group,
                   std::shared_ptr<CommHook> hook);

  CommHook* comm_hook() const noexcept { return hook_.get(); }
  /// Names the model in the labels of messages.
  void label(const std::string& model);
  /// The replica has got further buckets. Requires: nothing is started.
  void extend();

  /// From now on no bucket waits for a gradient.
  void await_nothing();
  /// The bucket waits for one more gradient.
  void await(size_t bucket) { ++awaited_[bucket]; }
  /// One of the gradients that the bucket waits for is in its place. Returns whether it was the last one.
  bool arrived(size_t bucket) { return --awaited_[bucket] == 0; }
  /// The current stream has written into the bucket.
  void note_writer(size_t bucket);

  /// Number of buckets that were started; the next one has this index.
  size_t started() const noexcept { return finishes_.size(); }
  bool has_started(size_t bucket) const noexcept { return bucket < finishes_.size(); }
  /// Whether the next bucket waits for no gradient. Requires: there is one.
  bool next_is_full() const { return awaited_[finishes_.size()] == 0; }
  /// Starts the next bucket. Collective.
  void start_next(int64_t step);
  /// Waits until all buckets hold their sums; on a device the current stream waits instead. Collective.
  void wait();
  /// Waits, within the group's timeout, for what was started, and discards it.
  void discard() noexcept;

  /// Reduces a bucket at once, without a CommHook. Collective.
  void reduce(size_t bucket, int64_t step) const;
  /// Reduces the flags at once, in a message of their own. Collective.
  void reduce_flags(int64_t step);

 private:
  void start_flags(int64_t step);

  const Replica& replica_;
  const comm::Communicator& group_;
  const std::shared_ptr<CommHook> hook_;
  std::string model_;                         // part of the labels
  std::vector<comm::OperationLabel> labels_;  // by bucket, without the step
  comm::OperationLabel flag_label_;
  std::vector<int64_t> awaited_;                 // by bucket: awaited gradients that have not arrived
  std::vector<GradientBucket> hook_buckets_;     // the buckets passed to the hook
  std::vector<comm::Communicator> hook_groups_;  // one group per bucket
  std::vector<CommHook::Finish> finishes_;       // one for each bucket that was started, in this order
  comm::Work flag_work_;                         // the all_reduce of the flags, if they have a separate message
  device::Stream stream_;                        // the stream that communicates buckets
  std::vector<device::StreamUses> writers_;      // by bucket: streams that have written it
};

/// Gradients that arrived after their buckets had started: they are averaged at the end of a reduction, in a second
/// message per bucket. Thread safety: the caller's.
class LateGradients {
 public:
  /// Names the model in the labels of messages.
  void label(const std::string& model);
  bool empty() const noexcept { return gradients_.empty(); }
  /// Adds a gradient of parameter i, which the current stream of this device has made.
  void add(size_t i, const at::Tensor& gradient, at::Device device);
  void discard() noexcept { gradients_.clear(); }
  /// Adds the sums over the ranks of these gradients, times the scale, to the buckets. Collective: also ranks that have
  /// none.
  void average(const Replica& replica, const at::Tensor& scale, const comm::Communicator& group, int64_t step);

 private:
  comm::OperationLabel label_;
  std::map<size_t, at::Tensor> gradients_;  // by parameter
  device::StreamUses makers_;               // streams that have made them
};

/// What ranks exchange in a reduction besides gradients: numbers that are summed with the last bucket, or in host
/// memory if that bucket is on a device. In this order:
/// - per parameter: 1 if this rank has a gradient;
/// - per parameter: 1 if this rank should have a gradient and has none;
/// - 1 if something unexpected has happened; 1 if there are late gradients; 1 if this rank has parameters that were
///   unfrozen and have no bucket yet; 1 if this rank has batches;
/// - per bit of the program's Piggyback: 1 if this rank sends it;
/// - per parameter: 1 if a rank with batches has frozen it.
/// In every dtype a sum of ones can be compared with 0 safely, so both a flag and its opposite are summed.
struct ReductionFlags {
  /// Number of elements for this many parameters.
  static int64_t count(size_t parameters) { return 3 * static_cast<int64_t>(parameters) + 4 + Piggyback::kBits; }
  /// Writes this rank's flags. `due`: whether trainable parameters should have gradients. Requires: some parameter.
  static void write(const Replica& replica, bool due, bool broken, bool late, bool unfrozen, unsigned bits);
  /// Reads the flags of all ranks, after the sum. No flag is set if there are no parameters.
  static ReductionFlags read(const Replica& replica);

  /// Whether any rank had a loss.
  bool any() const;
  /// Names the parameters that lack gradients on some ranks, or on all; empty: none.
  std::string missing(const Replica& replica) const;
  /// Names the parameters that only some of the ranks with batches have frozen; empty: none.
  std::string frozen_on_some(const Replica& replica) const;

  std::vector<double> used, unused, frozen;
  double due = 0;
  bool broken = false, late = false, unfrozen = false;
  unsigned bits = 0;  ///< the bits that some rank sent
};

}  // namespace muster::parallel
