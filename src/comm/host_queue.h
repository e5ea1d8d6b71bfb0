#pragma once

#include <exception>
#include <utility>

#include "comm/device_collectives.h"
#include "comm/fork_check.h"
#include "comm/operation.h"
#include "comm/piggyback.h"
#include "comm/wait_policy.h"
#include "muster/comm/communicator.h"

namespace muster::comm {

/// The host side of a group: runs its operations one at a time, in the order in which it numbers them. The caller's
/// runs in the caller's thread if no other is there, started ones in a thread of the queue, which begins with the first
/// of them. Thread safety: operations come from one thread at a time.
class HostQueue {
 public:
  /// Runs one operation. `asked`: when the caller gave it; `begin`: now.
  using Execute = std::function<void(Operation&, TimePoint asked, TimePoint begin)>;
  /// `never_waits`: operations never wait, so that no thread is needed. Requires: `attached` outlives this object.
  HostQueue(std::shared_ptr<WaitPolicy> waiting, bool never_waits, int ranks, const AttachedValues& attached,
            Execute execute);
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;

  /// Throws: what the operation throws.
  void run(Operation& operation);
  std::shared_ptr<Work::State> start(Operation operation);
  /// Waits until the thread has run the operations that were started; `abort` ends those that remain then.
  void end(TimePoint until, const std::function<void()>& abort);
  /// In a fork: gives away the thread, which belongs to the parent and cannot be joined here.
  std::thread release_thread() { return std::move(worker_); }

 private:
  using Clock = std::chrono::steady_clock;

  void number(Operation& operation) MUSTER_REQUIRES(waiting_->mutex());
  void work_off();

  const std::shared_ptr<WaitPolicy> waiting_;
  const bool never_waits_;
  const AttachedValues& attached_;
  const Execute execute_;

  std::deque<std::shared_ptr<Work::State>> queue_ MUSTER_GUARDED_BY(waiting_->mutex());
  bool busy_ MUSTER_GUARDED_BY(waiting_->mutex()) = false;  ///< an operation runs
  bool stop_ MUSTER_GUARDED_BY(waiting_->mutex()) = false;
  bool worker_ended_ MUSTER_GUARDED_BY(waiting_->mutex()) = true;
  int64_t sequence_ MUSTER_GUARDED_BY(waiting_->mutex()) = 0;
  std::vector<int64_t> pair_sequences_ MUSTER_GUARDED_BY(waiting_->mutex());  ///< of messages, by peer
  std::thread worker_;                                                        ///< used by the caller's thread only
};

class Work::State {
 public:
  State(Operation started, std::shared_ptr<WaitPolicy> how) : operation(std::move(started)), waiting(std::move(how)) {}
  explicit State(std::shared_ptr<DeviceWork> started) : on_device(std::move(started)) {}

  const ForkCheck process;
  std::shared_ptr<DeviceWork> on_device;  ///< the device operation; if set, the members below are not used
  Operation operation;
  std::shared_ptr<WaitPolicy> waiting;
  std::chrono::steady_clock::time_point asked = std::chrono::steady_clock::now();
  bool done MUSTER_GUARDED_BY(waiting->mutex()) = false;
  std::exception_ptr error MUSTER_GUARDED_BY(waiting->mutex());
};

}  // namespace muster::comm
