#pragma once

#include <deque>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/mutex.h"
#include "comm/custom_backend.h"
#include "comm/header.h"
#include "comm/operation.h"
#include "device/order.h"

namespace muster::comm {

class PendingOperation;

/// The operations of a group whose end on the device has not been seen yet, oldest first. The device is asked only
/// about operations that are older than `query_after`, or if there are more than kMany. Thread-safe.
class PendingOperations {
 public:
  /// `query_after`: the age of an operation at which the device is asked about it.
  explicit PendingOperations(std::chrono::milliseconds query_after) : query_after_(query_after) {}

  std::shared_ptr<PendingOperation> add(const Operation& operation);

  struct Oldest {
    Header header;
    /// Running time since the operation was passed to the backend and the operation before it had ended. Up to
    /// `query_after` longer if nobody saw that end.
    std::chrono::duration<double> seconds;
  };
  /// The oldest operation that has not ended, if it is older than `query_after`. Throws: what the device throws.
  std::optional<Oldest> oldest(TimePoint now);
  /// The oldest operation that has not ended, whatever its age. Throws: what the device throws.
  std::optional<Header> oldest_unended();
  void clear() {
    const base::Lock lock(mutex_);
    operations_.clear();
  }

 private:
  static constexpr std::size_t kMany = 128;
  bool drop_ended(TimePoint now) MUSTER_REQUIRES(mutex_);

  const std::chrono::milliseconds query_after_;
  base::Mutex mutex_;
  std::deque<std::shared_ptr<PendingOperation>> operations_ MUSTER_GUARDED_BY(mutex_);
  TimePoint last_end_ MUSTER_GUARDED_BY(mutex_){};
  TimePoint seen_running_ MUSTER_GUARDED_BY(mutex_){};
};

/// An operation that a backend runs on its own stream. Thread safety: one thread at a time.
class DeviceWork {
 public:
  DeviceWork(Operation operation, int rank, int size) : operation_(std::move(operation)), rank_(rank), size_(size) {}
  /// Makes the current stream wait for the operation. The calling thread does not wait.
  void wait();
  bool is_completed() const { return !work_ || work_->isCompleted(); }

 private:
  friend class DeviceCollectives;
  const Operation operation_;
  const int rank_, size_;
  std::optional<Operation> converted_;  ///< what the backend runs in its place, if it lacks the dtype
  std::vector<at::Tensor> kept_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::shared_ptr<PendingOperation> pending_;  ///< record of the operation; null: no watchdog
  bool waited_ = false;
  device::Event finished_;  ///< event after the last kernel, if a mean was computed after the backend's work
};

/// The operations of a group on tensors of its device, through a c10d::Backend for such tensors. The backend is called
/// in the caller's thread. So what the caller's current stream holds comes first, and operations of several groups
/// start in program order on every rank.
/// Why: docs/decisions/0137-groups-with-two-sides.md.
class DeviceCollectives {
 public:
  DeviceCollectives(c10::intrusive_ptr<c10d::Backend> backend, CustomBackend custom)
      : backend_(std::move(backend)), custom_(std::move(custom)) {}

  std::string name() const { return backend_->getBackendName(); }
  /// Whether the backend can run this operation.
  bool takes(const Operation& operation, c10::DeviceType device) const {
    return device == custom_.entry.device && has_backend_call(operation.kind);
  }
  /// Throws: ConfigError (MU564) if the backend lacks the dtype and it cannot be converted to another one.
  void require_dtype(const Operation& operation) const;
  /// Starts the operation, and keeps it in `pending`, if it is not null, until the device has ended it. Tensors of a
  /// dtype that the backend lacks are converted: to bytes if nothing is reduced; otherwise int16 to int32 in separate
  /// memory, and bool to uint8. Copies are made on the current stream.
  /// Requires: require_dtype(). Throws: what the backend throws.
  std::shared_ptr<DeviceWork> start(Operation operation, PendingOperations* pending);
  void abort() noexcept { abort_backend(*backend_); }
  /// The error that the backend itself has noticed; empty: none.
  std::string error() const;
  /// Collective among all ranks of the group. Null on ranks that are not in `ranks`.
  std::unique_ptr<DeviceCollectives> split(const std::vector<int>& ranks, const std::string& name) const;

 private:
  bool lacks_dtype(const Operation& operation) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  CustomBackend custom_;
};

}  // namespace muster::comm
