#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cluster/report.h"
#include "comm/collectives.h"
#include "comm/device_collectives.h"
#include "comm/device_watchdog.h"
#include "comm/flight_recorder.h"
#include "comm/fork_check.h"
#include "comm/wait_policy.h"

namespace muster::comm {

/// The properties of a group that do not depend on its transport.
struct GroupIdentity {
  std::string backend = "none";
  std::string backend_reason{};   ///< why it was chosen; empty: it was asked for
  std::shared_ptr<void> keeps{};  ///< kept alive by the group and its subgroups
  std::string name = "world";
  std::vector<int> ranks{};                           ///< their ranks in the job; empty: as in the group
  cluster::Report report{};                           ///< where this rank reports lost ranks
  std::shared_ptr<FlightRecorder> flight_recorder{};  ///< of the group and its subgroups; null: of no device
  std::shared_ptr<DeviceWatchdog> watch{};            ///< of the same; null: nobody watches
  bool starts_inline = false;                         ///< operations never wait, so nothing needs a thread
  std::chrono::milliseconds timeout{600'000};
  std::shared_ptr<WaitPolicy> waiting = std::make_shared<WaitPolicy>();
};

/// Of each rank of the group, the one in the job.
std::vector<int> job_ranks_of(const GroupIdentity& identity, int size);
/// The name in errors, which count ranks in the group: with their ranks in the job, by which their output is found.
std::string name_with_job_ranks(const std::string& name, const std::vector<int>& job_ranks);

/// Runs the operations of a group. It has two sides. The host side runs operations in order: those of the caller in its
/// own thread if no other is running, started ones in a thread of the group. Where there is a device side, it gets what
/// it takes of the operations on tensors of its device, at once and in an order of its own; other tensors of a device
/// are staged through host memory. The first failure ends the group: it is sent to the peers and thrown by all later
/// operations. One that the watch of the devices finds ends all groups that it watches. In a fork of the process
/// operations throw CommError (MU571), and nothing else of the group is touched.
class Group : public DeviceWatchdog::Watched {
 public:
  Group(GroupIdentity identity, std::unique_ptr<Collectives> collectives,
        std::unique_ptr<DeviceCollectives> device_collectives = nullptr);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// As the function of report_lost_rank.h.
  int job_rank(int rank) const { return job_ranks_.at(static_cast<std::size_t>(rank)); }
  const GroupIdentity& identity() const noexcept { return identity_; }

  /// As device_backend_of().
  std::string device_backend() const;

  void run(Operation& operation);
  std::shared_ptr<Work::State> start(Operation operation);
  void abort(const std::string& cause);
  /// The next error that this rank throws was caused by `rank`.
  void report_lost_rank(int rank, std::string_view reason);
  void observe(Communicator::Observer observer);
  /// Collective: memory for tensors that all ranks of the group have; null where they share none, or one of them cannot
  /// have it.
  std::shared_ptr<SharedBuffer> share(std::size_t bytes, PeerAccess access, const OperationLabel& label);
  std::size_t part_alignment() const noexcept { return collectives_->part_alignment(); }
  // Called by the watch, in its thread.
  std::optional<DeviceSuspicion> suspicion(TimePoint now) override;
  void end(const DeviceCause& cause) override;
  /// As the functions of piggyback.h.
  void attach_piggyback(uint64_t value);
  std::vector<uint64_t> attached_piggybacks();
  /// As require_same_device_operations().
  void compare_device_operations(const Communicator& through);
  /// The group of these ranks, or null if this rank is not one of them.
  std::shared_ptr<Group> subgroup(const std::vector<int>& ranks, const OperationLabel& label);

 private:
  using Clock = std::chrono::steady_clock;
  struct Failure {
    std::string id;
    std::string text;
    int peer = -1;  ///< the rank that caused it
  };

  void number(Operation& operation);
  void run_on_host(Operation& operation);
  std::shared_ptr<Work::State> start_on_host(Operation operation);
  /// Whether the host side runs the operation as it is.
  bool stays_on_host(const Operation& operation) const;
  bool goes_to_device(const Operation& operation) const;
  std::shared_ptr<DeviceWork> start_on_device(Operation operation);
  void note_on_device(const Operation& operation);
  void stage(Operation& operation);
  void run_collectives(Operation& operation, TimePoint deadline);
  void execute(Operation& operation, Clock::time_point asked, Clock::time_point begin);
  [[noreturn]] void fail(const Failure& failure);
  /// Keeps the first failure. Returns whether this is the first.
  bool keep(const Failure& failure);
  /// Waits until the device has ended what this rank has started; what is left then ends by an abort.
  void drain_device(TimePoint until) noexcept;
  void abort_device() noexcept;
  Failure explain(const Operation& operation, const TransportFailure& failure, Clock::time_point begin) const;
  void check_alive();
  void require_same_process() const;
  /// Instead of destroying what belongs to the process from which this one was forked.
  void leave_to_parent();
  void listen(const Operation& operation);
  void notify_observers(const Operation& operation, Clock::time_point asked);
  void work_off_queue();
  /// Waits until the group's thread has run what this rank has started; it is aborted then.
  void end_worker(TimePoint until);

  const ForkCheck process_;
  const GroupIdentity identity_;
  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<DeviceCollectives> device_collectives_;  ///< null: there is none
  const int rank_;
  const int size_;
  const std::vector<int> job_ranks_;  ///< of each of the group's ranks, the one in the whole job
  const std::string shown_name_;      ///< in errors
  PendingOperations pending_;         ///< those of the device side, if there is a watch

  // Guarded by the mutex of identity_.waiting.
  std::deque<std::shared_ptr<Work::State>> queue_;
  bool busy_ = false;
  bool stop_ = false;
  bool worker_ended_ = true;
  int64_t sequence_ = 0;
  std::vector<int64_t> pair_sequences_;
  int64_t subgroups_ = 0;
  int64_t device_sequence_ = 0, device_messages_ = 0;
  device::Stream staging_stream_;
  std::thread worker_;

  // What most operations ask is asked without a mutex.
  std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  std::atomic<bool> has_failed_ = false;
  std::atomic<uint64_t> piggyback_ = 0;
  std::mutex piggyback_mutex_;
  std::vector<uint64_t> heard_piggybacks_;
  std::atomic<bool> is_observed_ = false;
  std::mutex observers_mutex_;
  std::shared_ptr<const std::vector<Communicator::Observer>> observers_;
};

class Work::State {
 public:
  State(Operation started, std::shared_ptr<WaitPolicy> how) : operation(std::move(started)), waiting(std::move(how)) {}
  explicit State(std::shared_ptr<DeviceWork> started) : on_device(std::move(started)) {}

  const ForkCheck process;
  std::shared_ptr<DeviceWork> on_device;  ///< if there is one, nothing below is used
  Operation operation;
  std::shared_ptr<WaitPolicy> waiting;
  std::chrono::steady_clock::time_point asked = std::chrono::steady_clock::now();
  // Guarded by the mutex of waiting.
  bool done = false;
  std::exception_ptr error;
};

}  // namespace muster::comm
