#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "comm/header.h"
#include "comm/operation.h"
#include "device/order.h"

namespace muster::comm {

/// An operation that was passed to a device's backend. Its tensors are not kept. Thread-safe.
class PendingOperation {
 public:
  explicit PendingOperation(const Operation& operation);
  /// Called when the backend has started it.
  void started(c10::intrusive_ptr<c10d::Work> work);
  /// Called when the device's current stream waits for it. From then on an event on that stream tells whether it has
  /// ended, so that nothing of the operation is kept.
  void waited(at::Device device);
  /// Whether the device has ended it. Throws: what the device throws.
  bool has_ended() const;

  const Header& header() const noexcept { return header_; }
  TimePoint asked() const noexcept { return asked_; }

 private:
  const Header header_;
  const TimePoint asked_;
  mutable std::mutex mutex_;
  bool is_started_ = false;
  c10::intrusive_ptr<c10d::Work> work_;
  device::Event after_;
};

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
  void clear();

 private:
  static constexpr std::size_t kMany = 128;
  bool drop_ended(TimePoint now);

  const std::chrono::milliseconds query_after_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<PendingOperation>> operations_;
  TimePoint last_end_{}, seen_running_{};
};

}  // namespace muster::comm
