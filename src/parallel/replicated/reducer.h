#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/order.h"
#include "muster/comm/communicator.h"
#include "muster/parallel/comm_hook.h"
#include "muster/parallel/options.h"
#include "parallel/backward_watch.h"
#include "parallel/frozen_parameters.h"
#include "parallel/reduction_record.h"
#include "parallel/reduction_recorder.h"
#include "parallel/replicated/join_session.h"
#include "parallel/replicated/reduction_flags.h"
#include "parallel/replicated/replica.h"

namespace muster::parallel {

/// Averages gradients during each backward, like c10d::Reducer. One such averaging is called a reduction here.
///
/// A reduction begins with the first gradient of a backward and ends with it (see BackwardWatch). Buckets start in
/// their fixed order, each as soon as it and all buckets before it are full. Gradients that are missing at the end
/// (unused parameters) are filled with zeros, or with what was accumulated before, and their buckets are started then.
/// The last bucket carries flags, so that all ranks learn without a separate message which parameters had gradients on
/// which ranks. Under a CommHook, and on a device, the flags have a separate message. A nested backward belongs to the
/// reduction of the outer one. Gradients that arrive after their bucket was started are averaged at the end, in a
/// second message, if any rank has some.
///
/// The flags also say whether a rank has parameters that were unfrozen since the last reduction. The reduction then
/// ends with an exchange about these parameters: they get buckets after the others, and these buckets are communicated.
/// From the next reduction on they are treated like the others.
///
/// On a device, hooks may run on several streams. Buckets are communicated on a stream of the reducer, after all of
/// these streams. The stream on which the reduction ends waits for it; the host does not.
///
/// Thread safety: hooks may be called from several threads.
/// Why: docs/decisions/0041-the-reducer-and-the-fused-step.md.
class Reducer final : private BackwardActions {
 public:
  /// Requires: all arguments except the name outlive this object.
  Reducer(std::string name, Replica& replica, FrozenParameters& frozen, const comm::Communicator& group,
          const DdpOptions& options);
  Reducer(const Reducer&) = delete;

  /// Tells other ranks of each reduction before it communicates; nullptr stops that.
  void set_session(JoinSession* session, int64_t model) noexcept;
  /// Runs a reduction of this rank without a backward: sends what this rank has not communicated yet, or zeros.
  /// `root`: the rank whose buffers are used.
  void shadow(int root, double divisor);

  /// Sets a function that is called on every rank at the end of each reduction, with the rank whose buffers are used.
  void at_end(std::function<void(int root)> f) { at_end_ = std::move(f); }
  /// Starts a reduction of this rank outside of backward: it sends what this rank has not communicated yet, or zeros.
  /// Nothing changes if no rank has a gradient.
  void start();
  void finish_started();
  /// Number of completed reductions, without those of shadow().
  int64_t ended() const noexcept { return ended_; }
  /// Makes reductions carry index and step, and record their order.
  void register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index);

  void set_sync(bool on) noexcept { sync_ = on; }
  bool sync() const noexcept { return sync_; }
  /// Call it after the current stream has read local gradients. Other streams may free them afterwards.
  void order_local_gradients() const;
  /// The communication hook; nullptr: gradients are all-reduced directly.
  CommHook* comm_hook() const noexcept { return comm_hook_.get(); }
  /// Begins and ends a forward scope. From then on a gradient of a parameter that was unfrozen since the last scope
  /// also begins a reduction, although the parameter has no bucket yet. `begin`: called if no scope is open.
  void enter_forward(const std::function<void()>& begin);
  void leave_forward() noexcept;
  /// Call these two around a backward. after_backward() throws what the backward has to report.
  void before_backward();
  void after_backward();
  /// Instead of after_backward(), if the backward has thrown.
  void fail_backward() noexcept;

 private:
  struct State {
    bool fired = false;    ///< whether it got a gradient in this reduction
    bool expected = true;  ///< static_graph: whether it has a gradient in each reduction
    bool awaited = true;   ///< whether its bucket waits for it in this reduction
  };
  /// The reason why this rank takes part in a reduction.
  enum class Cause { backward, start, join };

  void begin_backward(BackwardState what) override;
  void before_gradient(size_t leaf) override;
  void gradient_arrived(size_t leaf, const at::Tensor& parameter) override;
  void end_backward(BackwardState what, bool complete) override;
  void discard_backward() noexcept override;

  void watch(const NamedTensor& parameter, int64_t index);
  void watch_unfrozen();
  void add_unfrozen();
  void update_buckets();
  void note_averaged();
  void wait_for_average();
  void prepare_reduction();
  void prepare_without_batch();
  void discard_reduction() noexcept;
  void divide_by(double ranks);
  void store(size_t i);
  void add_late_gradient(size_t i);
  void average_late();
  void start_full_buckets(bool ends = false);
  void name_operations(const std::string& model);
  comm::Communicator in_this_step(const comm::OperationLabel& label) const;
  void start_bucket(size_t bucket);
  void start_flags();
  void end_buckets();
  void run_finishes();
  void write_flags();
  void finish(bool reports);
  void fill(size_t i);
  void fill_the_rest();
  void finalize_backward(bool reports);
  void refuse_different_freezing(const ReductionFlags& flags) const;
  void report(const ReductionFlags& flags);

  static constexpr double kMiB = 1024.0 * 1024.0;

  std::string name_;
  Replica& replica_;
  FrozenParameters& frozen_;
  const comm::Communicator& group_;
  const DdpOptions& options_;
  at::Tensor scale_;
  std::deque<State> states_;
  std::deque<int64_t> index_of_leaf_;                             // index in the replica; -1: not there yet
  std::unordered_map<c10::TensorImpl*, size_t> unfrozen_leaves_;  // leaves that are not in the replica yet
  std::vector<int64_t> pending_;                     // per bucket: expected gradients that have not arrived
  std::vector<comm::OperationLabel> bucket_labels_;  // the labels of operations, without the step
  comm::OperationLabel flag_label_, late_label_;
  std::string label_;                            // name of the model; part of the labels of its operations
  std::shared_ptr<CommHook> comm_hook_;          // nullptr: all_reduce
  std::vector<GradientBucket> hook_buckets_;     // the buckets passed to the hook
  std::vector<comm::Communicator> hook_groups_;  // one group per bucket
  std::vector<CommHook::Finish> finishes_;       // one for each bucket that was started, in this order
  comm::Work flag_work_;                         // the all_reduce of the flags, if they have a separate message
  std::mutex mutex_;
  JoinSession* session_ = nullptr;
  int64_t session_index_ = -1;  // index of this model in the session
  int root_ = 0;                // rank whose buffers are used after this reduction
  std::function<void(int root)> at_end_;
  Cause cause_ = Cause::backward;  // of the current reduction
  int64_t ended_ = 0;
  ReductionRecorder recorder_;
  std::map<size_t, at::Tensor> late_;            // gradients of parameters whose bucket had started
  device::Stream stream_;                        // the stream that communicates buckets
  std::vector<device::StreamUses> bucket_uses_;  // per bucket: streams that have written it
  device::StreamUses local_uses_;                // streams that have made gradients that are not in a bucket
  device::StreamUses late_uses_;                 // streams that have made gradients in late_
  device::Event averaged_;                       // the end of the last reduction
  device::StreamUses after_average_;             // streams that already wait for averaged_
  bool active_ = false;                          // whether a reduction runs
  bool sync_ = true;
  bool static_graph_known_ = false;  // static_graph: whether `expected` is known
  bool broken_ = false;              // static_graph: whether another parameter got a gradient
  BackwardWatch watch_;              // last, because its hooks use the other members
};

}  // namespace muster::parallel
