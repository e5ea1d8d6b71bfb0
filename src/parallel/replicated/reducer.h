#pragma once

#include "base/mutex.h"
#include "device/order.h"
#include "muster/comm/communicator.h"
#include "muster/parallel/options.h"
#include "parallel/backward_watch.h"
#include "parallel/frozen_parameters.h"
#include "parallel/join.h"
#include "parallel/reduction_record.h"
#include "parallel/replicated/bucket_reductions.h"
#include "parallel/replicated/replica.h"

namespace muster::parallel {

/// What DdpOptions::static_graph promises: each backward gives gradients to the parameters that got them in the first
/// one. Thread safety: the caller's.
class StaticGraph {
 public:
  explicit StaticGraph(bool promised) : promised_(promised) {}

  bool promised() const noexcept { return promised_; }
  /// A reduction begins.
  void begin() noexcept { broken_ = false; }
  /// Whether the parameter gets a gradient, as far as that is known.
  bool expects(size_t parameter) const { return !expected_ || (*expected_)[parameter]; }
  /// The parameter has got a gradient.
  void got(size_t parameter) { broken_ = broken_ || !expects(parameter); }
  /// A backward ends, in which the parameter, which is trained or frozen now, has got a gradient or not.
  void compare(size_t parameter, bool trained, bool got) {
    broken_ = broken_ || got != (expects(parameter) && trained);
  }
  /// Whether the first backward has ended.
  bool is_known() const noexcept { return expected_.has_value(); }
  /// The first backward has ended: whether each parameter is expected to get a gradient from now on.
  void learn(std::vector<char> expected) { expected_ = std::move(expected); }
  /// A parameter follows the others.
  void add(bool expected) {
    if (expected_) expected_->push_back(static_cast<char>(expected));
  }
  /// Whether this rank has seen in this reduction that the promise does not hold.
  bool broken() const noexcept { return promised_ && broken_; }

 private:
  const bool promised_;
  std::optional<std::vector<char>> expected_;  // by parameter; nullopt before the first backward has ended
  bool broken_ = false;
};

/// On a device: the order between a reduction and the streams that make gradients outside of buckets, or add to
/// averages. Thread safety: the caller's.
class GradientStreams {
 public:
  /// The current stream has made a gradient that is in no bucket.
  void note_local(at::Device device) { local_.add(device); }
  /// The current stream has read local gradients: other streams may free them afterwards.
  void order_local(at::Device device) const;
  /// The current stream has waited for averages.
  void note_averaged(at::Device device);
  /// The current stream is about to add to what the last reduction has left.
  void wait_for_average(at::Device device);

 private:
  device::StreamUses local_;          // streams that have made gradients that are not in a bucket
  device::Event averaged_;            // the end of the last reduction
  device::StreamUses after_average_;  // streams that already wait for averaged_
};

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
  void set_session(JoinSession* session, int64_t model) noexcept { participants_.set_session(session, model); }
  bool in_session() const noexcept { return participants_.in_session(); }
  /// Runs a reduction of this rank without a backward: sends what this rank has not communicated yet, or zeros.
  void follow(const JoinStep& step);

  /// Sets a function that is called on every rank at the end of each reduction, with the rank whose buffers are used.
  void at_end(std::function<void(int root)> f) { at_end_ = std::move(f); }
  /// Starts a reduction of this rank outside of backward: it sends what this rank has not communicated yet, or zeros.
  /// Nothing changes if no rank has a gradient.
  void start();
  void finish_started();
  /// Number of completed reductions, without those of follow().
  int64_t ended() const noexcept { return ended_; }
  /// Makes reductions carry index and step, and record their order.
  void register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index);

  void set_sync(bool on) noexcept { sync_ = on; }
  bool sync() const noexcept { return sync_; }
  /// Call it after the current stream has read local gradients. Other streams may free them afterwards.
  void order_local_gradients() const { streams_.order_local(replica_.device()); }
  /// The communication hook; nullptr: gradients are all-reduced directly.
  CommHook* comm_hook() const noexcept { return buckets_.comm_hook(); }
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
  struct Gradient {
    bool fired = false;   ///< whether it has arrived in this reduction
    bool awaited = true;  ///< whether its bucket waits for it in this reduction
    bool local = false;   ///< whether grad() has collected gradients of this rank since the last reduction
  };
  /// The reason why this rank takes part in a reduction.
  enum class Cause { backward, start, join };

  void begin_backward(BackwardState what) override MUSTER_REQUIRES(watch_.mutex());
  void before_gradient(size_t leaf) override MUSTER_REQUIRES(watch_.mutex());
  void gradient_arrived(size_t leaf, const at::Tensor& parameter) override MUSTER_REQUIRES(watch_.mutex());
  void end_backward(BackwardState what, bool complete) override MUSTER_REQUIRES(watch_.mutex());
  void discard_backward() noexcept override MUSTER_REQUIRES(watch_.mutex());

  void watch(const NamedTensor& parameter, int64_t index) MUSTER_REQUIRES(watch_.mutex());
  void watch_unfrozen() MUSTER_REQUIRES(watch_.mutex());
  void add_unfrozen() MUSTER_REQUIRES(watch_.mutex());
  void prepare_reduction() MUSTER_REQUIRES(watch_.mutex());
  void prepare_without_batch() MUSTER_REQUIRES(watch_.mutex());
  void store(size_t i) MUSTER_REQUIRES(watch_.mutex());
  void add_late_gradient(size_t i) MUSTER_REQUIRES(watch_.mutex());
  void start_full_buckets(bool ends = false) MUSTER_REQUIRES(watch_.mutex());
  /// The step in the labels of messages. Ranks in a join_uneven_inputs() loop are in different steps.
  int64_t labelled_step() const MUSTER_REQUIRES(watch_.mutex()) {
    return participants_.in_session() || cause_ == Cause::join ? -1 : recorder_.step();
  }
  void write_flags() MUSTER_REQUIRES(watch_.mutex());
  void finish(bool reports) MUSTER_REQUIRES(watch_.mutex());
  void fill(size_t i) MUSTER_REQUIRES(watch_.mutex());
  void fill_the_rest() MUSTER_REQUIRES(watch_.mutex());
  void finalize_backward(bool reports) MUSTER_REQUIRES(watch_.mutex());
  void report(const ReductionFlags& flags) MUSTER_REQUIRES(watch_.mutex());

  static constexpr double kMiB = 1024.0 * 1024.0;

  std::string name_;
  Replica& replica_;
  FrozenParameters& frozen_;
  const comm::Communicator& group_;
  const DdpOptions& options_;
  std::vector<Gradient> gradients_ MUSTER_GUARDED_BY(watch_.mutex());     // by parameter of the replica
  std::vector<int64_t> index_of_leaf_ MUSTER_GUARDED_BY(watch_.mutex());  // index in the replica; -1: not there yet
  // Leaves that are not in the replica yet.
  std::unordered_map<c10::TensorImpl*, size_t> unfrozen_leaves_ MUSTER_GUARDED_BY(watch_.mutex());
  StaticGraph static_graph_ MUSTER_GUARDED_BY(watch_.mutex());
  Cause cause_ MUSTER_GUARDED_BY(watch_.mutex()) = Cause::backward;  // of the current reduction
  bool active_ MUSTER_GUARDED_BY(watch_.mutex()) = false;            // whether a reduction runs
  // Used in a reduction with the mutex, and without it between backwards, by the thread that trains.
  BucketReductions buckets_;
  LateGradients late_;
  GradientStreams streams_;
  Participants participants_;
  std::function<void(int root)> at_end_;
  int64_t ended_ = 0;
  ReductionRecorder recorder_;
  bool sync_ = true;
  BackwardWatch watch_;  // last, because its hooks use the other members
};

}  // namespace muster::parallel
