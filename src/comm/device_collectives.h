#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/agreed_backend.h"
#include "comm/converted_operation.h"
#include "comm/operation.h"
#include "comm/pending_operations.h"
#include "device/order.h"
#include "muster/comm/rendezvous.h"

namespace muster::comm {

/// An operation that a backend runs on its own stream. Thread safety: one thread at a time.
class DeviceWork {
 public:
  DeviceWork(Operation operation, int size);
  /// Makes the current stream wait for the operation. The calling thread does not wait.
  void wait();
  bool is_completed() const { return !work_ || work_->isCompleted(); }

 private:
  friend class DeviceCollectives;
  bool has_result() const;

  const Operation operation_;
  const int size_;
  std::optional<ConvertedOperation> converted_;
  std::vector<at::Tensor> kept_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::shared_ptr<PendingOperation> pending_;  ///< record of the operation; null: no watchdog
  int rank_ = 0;
  bool waited_ = false;
  device::Event finished_;  ///< event after the last kernel, if a mean was computed after the backend's work
};

/// Makes the c10d::Backend for device tensors of a group, and of its subgroups.
/// Why: docs/decisions/0141-a-door-to-a-backend-of-a-device.md.
struct DeviceBackendFactory {
  BackendEntry entry;
  GroupOptions options;
  /// Returns the part of the store that belongs to a group of this name.
  std::function<c10::intrusive_ptr<c10d::Store>(const std::string& name)> store;

  /// Collective: the ranks of the group. Throws: what make_on_all_ranks() throws; MU560 if a factory returns null.
  c10::intrusive_ptr<c10d::Backend> make(const std::string& name, int rank, int size) const;
  /// Null on ranks that are not in `ranks`. Collective: all ranks of `parent`. Throws: what make() throws.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Backend>& parent,
                                          const std::vector<int>& ranks, const std::string& name) const;

 private:
  BackendAgreement agreement(const std::string& name, int rank, int size, std::string group) const;
};

/// The operations of a group on tensors of its device, through a c10d::Backend for such tensors. The backend is called
/// in the caller's thread. So what the caller's current stream holds comes first, and operations of several groups
/// start in program order on every rank.
/// Why: docs/decisions/0137-groups-with-two-sides.md.
class DeviceCollectives {
 public:
  DeviceCollectives(c10::intrusive_ptr<c10d::Backend> backend, DeviceBackendFactory maker);

  std::string name() const { return backend_->getBackendName(); }
  /// Whether the backend can run this operation.
  bool takes(const Operation& operation, c10::DeviceType device) const;
  /// Throws: ConfigError (MU564) if the backend lacks the dtype and it cannot be converted to another one.
  void require_dtype(const Operation& operation) const;
  /// Throws: what the backend throws.
  std::shared_ptr<DeviceWork> start(Operation operation);
  /// Starts the operation and keeps it in `pending` until the device has ended it. Throws: what the backend throws.
  std::shared_ptr<DeviceWork> start(Operation operation, PendingOperations& pending);
  void abort() noexcept;
  /// The error that the backend itself has noticed; empty: none.
  std::string error() const;
  /// Collective among all ranks of the group. Null on ranks that are not in `ranks`.
  std::unique_ptr<DeviceCollectives> split(const std::vector<int>& ranks, const std::string& name) const;

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  DeviceBackendFactory maker_;
};

}  // namespace muster::comm
