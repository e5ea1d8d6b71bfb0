#pragma once

#include "base/mutex.h"
#include "cluster/report.h"
#include "comm/collectives.h"
#include "comm/device_collectives.h"
#include "comm/device_watchdog.h"
#include "comm/flight_recorder.h"
#include "comm/fork_check.h"
#include "comm/operation.h"
#include "comm/piggyback.h"
#include "comm/wait_policy.h"
#include "muster/comm/communicator.h"
#include "muster/comm/options.h"

namespace muster::comm {

/// The properties of a group that do not depend on its transport.
struct GroupIdentity {
  std::string backend = "none";
  std::string backend_reason{};   ///< why the backend was chosen; empty: it was asked for
  std::shared_ptr<void> keeps{};  ///< objects that the group and its subgroups keep alive
  std::string name = "world";
  std::vector<int> ranks{};                           ///< the group's ranks as ranks in the job; empty: equal
  cluster::Report report{};                           ///< where this rank reports lost ranks
  std::shared_ptr<FlightRecorder> flight_recorder{};  ///< shared with subgroups; null: no device backend
  std::shared_ptr<DeviceWatchdog> watch{};            ///< shared with subgroups; null: no watchdog
  bool starts_inline = false;                         ///< whether operations never wait, so that no thread is needed
  std::chrono::milliseconds timeout{600'000};
  std::shared_ptr<WaitPolicy> waiting = std::make_shared<WaitPolicy>();
};

/// Throws: ConfigError (MU327) for a timeout that is not positive, or too long.
void check_timeouts(const GroupOptions& options);

/// The failure that has ended a group; later ones are not kept. Thread-safe. Whether there is one costs no lock.
class FirstFailure {
 public:
  struct Failure {
    std::string id;
    std::string text;
    int peer = -1;  ///< the rank that caused it; -1: unknown
    std::string message() const { return id + ": " + text; }
  };

  /// Keeps the first failure. Returns whether this is the first.
  bool keep(const Failure& failure) {
    const base::Lock lock(mutex_);
    if (failure_) return false;
    failure_ = failure;
    is_kept_.store(true, std::memory_order_release);
    return true;
  }
  bool is_kept() const noexcept { return is_kept_.load(std::memory_order_acquire); }
  /// The failure, which never changes. Requires: is_kept().
  const Failure& kept() const MUSTER_NO_THREAD_SAFETY_ANALYSIS { return *failure_; }  // nothing writes it any more

 private:
  base::Mutex mutex_;
  std::optional<Failure> failure_ MUSTER_GUARDED_BY(mutex_);
  std::atomic<bool> is_kept_ = false;
};

/// The observers of a group's operations. Thread-safe. Whether there are any costs no lock.
class Observers {
 public:
  void add(Communicator::Observer observer) {
    const base::Lock lock(mutex_);
    auto all = observers_ ? std::make_shared<std::vector<Communicator::Observer>>(*observers_)
                          : std::make_shared<std::vector<Communicator::Observer>>();
    all->push_back(std::move(observer));
    observers_ = std::move(all);
    any_.store(true, std::memory_order_release);
  }
  bool any() const noexcept { return any_.load(std::memory_order_acquire); }
  /// Calls the observers that there are now, without a lock. Requires: any().
  void notify(const OperationEvent& event) const {
    std::shared_ptr<const std::vector<Communicator::Observer>> all;
    {
      const base::Lock lock(mutex_);
      all = observers_;
    }
    for (const auto& observer : *all) observer(event);
  }

 private:
  std::atomic<bool> any_ = false;
  mutable base::Mutex mutex_;
  std::shared_ptr<const std::vector<Communicator::Observer>> observers_ MUSTER_GUARDED_BY(mutex_);
};

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

/// Runs the operations of a group. It has two sides. The host side runs operations in order: the caller's in the
/// caller's thread if no other is running, started ones in a thread of the group. The device side, if there is one,
/// gets the operations on tensors of its device that it can run, at once and in an order of its own; other device
/// tensors are staged through host memory. The first failure ends the group: it is sent to the peers and thrown by all
/// later operations. A failure that the device watchdog finds ends all groups that it watches. In a fork of the process
/// operations throw CommError (MU571), and nothing else of the group is touched.
/// Why: docs/decisions/0137-groups-with-two-sides.md.
class Group {
 public:
  Group(GroupIdentity identity, std::unique_ptr<Collectives> collectives,
        std::unique_ptr<DeviceCollectives> device_collectives = nullptr);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// See job_rank() in agreement.h.
  int job_rank(int rank) const { return job_ranks_.at(static_cast<std::size_t>(rank)); }
  const GroupIdentity& identity() const noexcept { return identity_; }

  /// See device_backend_of().
  std::string device_backend() const { return device_collectives_ ? device_collectives_->name() : std::string(); }

  void run(Operation& operation);
  std::shared_ptr<Work::State> start(Operation operation);
  void abort(const std::string& cause);
  /// Reports that `rank` caused the error that this rank throws next.
  void report_lost_rank(int rank, std::string_view reason);
  void observe(Communicator::Observer observer) { observers_.add(std::move(observer)); }
  /// Allocates memory for tensors that all ranks of the group can access; null if they cannot share memory, or if one
  /// of them cannot allocate it. Collective.
  std::shared_ptr<SharedBuffer> share(std::size_t bytes, PeerAccess access, const OperationLabel& label);
  std::size_t part_alignment() const noexcept { return collectives_->part_alignment(); }
  /// The suspicion about this group, once its timeout has passed or its backend has failed; nullopt: none. Called by
  /// the watchdog, in its thread.
  std::optional<DeviceSuspicion> suspicion(TimePoint now);
  /// Ends the group's operations with this cause. Called by the watchdog, in its thread.
  void end(const DeviceCause& cause);
  /// See attach_piggyback() and attached_piggybacks() in piggyback.h.
  AttachedValues& attached_values() noexcept { return attached_; }
  /// See require_same_device_operations().
  void compare_device_operations(const Communicator& through);
  /// The group of these ranks, or null if this rank is not one of them.
  std::shared_ptr<Group> subgroup(const std::vector<int>& ranks, const OperationLabel& label);

 private:
  using Clock = std::chrono::steady_clock;
  using Failure = FirstFailure::Failure;

  /// Whether the host side runs the operation without staging.
  bool stays_on_host(const Operation& operation) const;
  bool goes_to_device(const Operation& operation) const;
  std::shared_ptr<DeviceWork> start_on_device(Operation operation);
  void stage(Operation& operation);
  void execute(Operation& operation, Clock::time_point asked, Clock::time_point begin);
  [[noreturn]] void fail(const Failure& seen);
  /// Waits until the device has ended the operations that this rank has started. An abort ends those that remain.
  void drain_device(TimePoint until) noexcept;
  void abort_device() noexcept;
  Failure explain(const Operation& operation, const TransportFailure& failure, Clock::time_point begin) const;
  Failure unexpected(const Operation& operation, std::string_view what, std::string_view reason) const;
  void check_alive();
  void require_same_process() const { process_.require_same_process("group ", identity_.name); }
  /// Called instead of the usual destruction for what belongs to the process from which this one was forked.
  void leave_to_parent();
  void notify_observers(const Operation& operation, Clock::time_point asked);

  const ForkCheck process_;
  const GroupIdentity identity_;
  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<DeviceCollectives> device_collectives_;  ///< the device side; null: there is none
  const int rank_;
  const int size_;
  const std::vector<int> job_ranks_;  ///< for each rank of the group, its rank in the job
  const std::string shown_name_;      ///< the name used in errors
  PendingOperations pending_;         ///< operations of the device side, if there is a watchdog

  // Used by the thread that starts operations.
  int64_t subgroups_ = 0;
  int64_t device_sequence_ = 0, device_messages_ = 0;
  device::Stream staging_stream_;

  FirstFailure failure_;
  AttachedValues attached_;
  Observers observers_;
  HostQueue queue_;  ///< the host side
};

}  // namespace muster::comm
