#pragma once

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "parallel/sharded/buffer_pool.h"
#include "parallel/sharded/shard_layout.h"
#include "parallel/sharded/sharded_settings.h"

namespace muster::parallel {

/// The gradients of one unit: full gradients that are not reduced yet, and the sums for the shard that this rank holds.
///
/// Full gradients are stored in one row per rank: its shard, then a flag per parameter that says whether it got a
/// gradient, then a flag that says whether the rank has frozen or unfrozen parameters of the model. One reduction of
/// rows carries all of this. On a device flags are separate, since the host reads them: sent_flags() and
/// receive_flags(). If full gradients stay in memory (`keeps_full`), the sum is this rank's row; otherwise rows are
/// pool memory, in the dtype of the reduction. On a device full gradients may arrive on any stream. Their sum is
/// computed on the stream of `Options`, after all of these streams. Thread safety: none; the caller excludes other
/// threads.
class UnitGradients {
 public:
  struct Options {
    at::TensorOptions value;  ///< dtype and device of the shards that are updated
    at::ScalarType reduce;
    bool keeps_full = false;
    double divisor_before = 1;
    bool on_all_ranks = false;   ///< whether every rank makes these gradients now, so that ranks may share memory
    device::Stream stream = {};  ///< stream of reductions on a device; the owner orders it with other streams
  };

  /// Requires: the layout, the groups and the buffers outlive this object. `numels`: elements of each parameter.
  UnitGradients(const ShardLayout& layout, std::vector<int64_t> numels, const ShardGroups& groups,
                const Options& options, BufferPool& buffers);

  /// This rank's shard of the gradient of parameter i, including the padding.
  at::Tensor part(size_t i) const { return part_of(result_, i); }
  /// Whether a step uses the gradient of parameter i.
  bool has_sharded_grad(size_t i) const { return has_sharded_grad_[i]; }
  /// Whether parameter i has a full gradient that is not reduced yet.
  bool has_unsharded_grad(size_t i) const { return has_unsharded_grad_[i]; }
  bool has_unsharded_grads() const;
  /// Sums over ranks are divided by this number from now on. Requires: no gradient waits that is divided already.
  void set_divisor(double divisor);

  /// Adds a full gradient, 1-D in the order of the parameter's memory, to the waiting ones. `last`: no more gradients
  /// follow before the reduction, so the sum is scaled while it is in the cache; otherwise start_reduction() scales it.
  void take(size_t i, const at::Tensor& flat, bool last = true);
  /// A copy of the waiting full gradient. Requires: has_unsharded_grad().
  at::Tensor unsharded(size_t i);
  /// This rank's shard of the sum, including the padding, wherever it is stored now.
  at::Tensor sum(size_t i) const;
  /// Sets the sum to `values`, which have no padding, as if a reduction had computed it.
  void load_sum(size_t i, const at::Tensor& values);
  /// Starts to sum the waiting gradients over the ranks. Collective, until wait() has returned.
  /// Requires: the label outlives the reduction.
  void start_reduction(const comm::OperationLabel& label, bool freezing_change = false);
  /// On a device: per parameter, whether this rank has reduced a gradient since the last receive_flags(); then whether
  /// it has reported a freezing change.
  const std::vector<char>& sent_flags() const noexcept { return sent_flags_; }
  bool flags_are_apart() const noexcept { return !sent_flags_.empty(); }
  /// Takes the sums of sent_flags() over the ranks. Gradients that were reduced count only from then on.
  void receive_flags(const float* sums);
  /// Whether any rank has reported a `freezing_change` since the last call.
  bool take_freezing_change() noexcept { return std::exchange(freezing_change_, false); }
  bool in_flight() const { return flight_.has_value(); }
  /// Waits for the sum over the shards, and starts the sum over the replicas.
  void finish_scatter();
  /// Adds the sums to the shards.
  void wait();
  /// After a failure: waits for what is running, and discards it together with the waiting gradients. Throws nothing.
  void cancel() noexcept;
  /// Returns pool memory. Requires: nobody uses the gradients any more.
  void release_memory();

  void zero(size_t i, bool set_to_none);
  /// Drops the reduced gradient of parameter i, and keeps a waiting one.
  void drop_sum(size_t i) { has_sharded_grad_[i] = false; }
  /// Scales both the reduced and the waiting gradients.
  void scale(size_t i, double factor);
  /// Bytes of pool memory that full gradients take.
  int64_t pool_bytes() const;
  /// Bytes that are allocated permanently.
  int64_t held_bytes() const;

 private:
  struct RowRun {  // elements of a parameter that are adjacent in one row
    int64_t row, offset_in_row, offset_in_param, length;
    int64_t padded;  // length with the padding of the parameter's last block
  };
  struct Flight {
    comm::Work work;
    at::Tensor rows, sent, got;
    bool into_result = false;  // whether the reduction writes to result_ directly instead of to separate memory
    bool scattered = false;
    const comm::OperationLabel* label = nullptr;
  };

  at::Tensor part_of(const at::Tensor& row, size_t i) const;
  int64_t row_length() const;
  at::TensorOptions rows_options() const { return options_.value.dtype(options_.reduce); }
  at::Tensor run(const at::Tensor& rows, const RowRun& at, int64_t length) const;
  /// Whether the shard holds a sum, or zeros, to which a reduction adds.
  bool holds_sum(size_t i) const { return has_sharded_grad_[i] || reduced_; }
  bool holds_any_sum() const;
  void begin_collecting();
  void take_run(const at::Tensor& target, const at::Tensor& source, size_t i, bool last) const;
  void fill_gaps(bool freezing_change);
  std::vector<char> read_flags(const at::Tensor& got);
  void add_sums(const at::Tensor& got, bool into_result, const std::vector<char>& used);
  void add_kept_sum(size_t i, const at::Tensor& sum, bool into_result, bool used);

  const ShardLayout& layout_;
  const ShardGroups& groups_;
  Options options_;
  BufferPool& buffers_;
  std::vector<std::vector<RowRun>> runs_;
  std::vector<RowRun> gaps_;   // ranges that belong to no parameter
  double divisor_ = 1;         // of sums over ranks
  double divisor_before_ = 1;  // the part of it by which gradients are divided before they are summed
  at::Tensor scale_;           // 1 / divisor_before_ as a number tensor
  at::Tensor rows_;
  at::Tensor result_;  // this rank's shard, then flags
  at::Tensor before_;  // result_ before its memory was used for collecting
  bool collecting_ = false;
  bool freezing_change_ = false;
  std::vector<char> has_unsharded_grad_, scaled_, has_sharded_grad_;  // scaled_: already divided
  std::vector<char> sent_flags_;                                      // empty if flags are in the rows
  bool reduced_ = false;           // whether gradients were reduced whose flags have not been received
  device::Event ready_;            // the point from which rows may be written
  device::StreamUses collectors_;  // streams that have written rows
  std::optional<Flight> flight_;
};

}  // namespace muster::parallel
