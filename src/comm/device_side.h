#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/operation.h"
#include "comm/plugged.h"
#include "muster/device/detail/order.h"

namespace muster::comm {

/// An operation that a backend runs on a stream of its own. Thread safety: one thread at a time.
class DeviceWork {
 public:
  DeviceWork(Operation operation, int size);
  /// The current stream waits for the operation; the calling thread does not.
  void wait();
  bool is_completed() const { return !work_ || work_->isCompleted(); }

 private:
  friend class DeviceSide;
  const Operation operation_;
  const int size_;
  std::vector<at::Tensor> kept_;
  c10::intrusive_ptr<c10d::Work> work_;
  int rank_ = 0;
  bool waited_ = false;
  device::Event mean_;  ///< where a mean was finished
};

/// The operations of a group on tensors of its device, through a c10d::Backend for such tensors. The backend is called
/// in the caller's thread, so that what the caller's current stream holds comes first, and operations of several groups
/// start in the order of the program on every rank.
class DeviceSide {
 public:
  DeviceSide(c10::intrusive_ptr<c10d::Backend> backend, c10::DeviceType device, SplitBackend split);

  std::string name() const { return backend_->getBackendName(); }
  /// Whether the backend can run this operation.
  bool takes(const Operation& operation, c10::DeviceType device) const;
  /// Throws: what the backend throws.
  std::shared_ptr<DeviceWork> start(Operation operation);
  void abort() noexcept;
  /// Collective among `ranks`, all members.
  std::unique_ptr<DeviceSide> split(const std::vector<int>& ranks, const std::string& name) const;

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::DeviceType device_;
  SplitBackend split_;
};

}  // namespace muster::comm
