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

/// An operation that a backend runs on a stream of its own. Thread safety: one thread at a time.
class DeviceWork {
 public:
  DeviceWork(Operation operation, int size);
  /// The current stream waits for the operation; the calling thread does not.
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
  std::shared_ptr<PendingOperation> pending_;  ///< null: nobody watches
  int rank_ = 0;
  bool waited_ = false;
  device::Event finished_;  ///< after the last kernel, if the result was changed (a mean) after the backend's work
};

/// Makes the c10d::Backend for device tensors of a group, and of its subgroups.
struct DeviceBackendFactory {
  BackendEntry entry;
  GroupOptions options;
  /// The part of the store that belongs to a group of this name.
  std::function<c10::intrusive_ptr<c10d::Store>(const std::string& name)> store;

  /// Collective: the ranks of the group. Throws: as make_on_all_ranks(), MU560 if a factory returns none.
  c10::intrusive_ptr<c10d::Backend> make(const std::string& name, int rank, int size) const;
  /// Null on ranks that are none of `ranks`. Collective: all ranks of `parent`. Throws: as make().
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Backend>& parent,
                                          const std::vector<int>& ranks, const std::string& name) const;

 private:
  BackendAgreement agreement(const std::string& name, int rank, int size, std::string group) const;
};

/// The operations of a group on tensors of its device, through a c10d::Backend for such tensors. The backend is called
/// in the caller's thread, so that what the caller's current stream holds comes first, and operations of several groups
/// start in the order of the program on every rank.
class DeviceCollectives {
 public:
  DeviceCollectives(c10::intrusive_ptr<c10d::Backend> backend, DeviceBackendFactory maker);

  std::string name() const { return backend_->getBackendName(); }
  /// Whether the backend can run this operation.
  bool takes(const Operation& operation, c10::DeviceType device) const;
  /// Throws: ConfigError (MU564) if the backend lacks the dtype, which cannot travel as another one.
  void require_dtype(const Operation& operation) const;
  /// Throws: what the backend throws.
  std::shared_ptr<DeviceWork> start(Operation operation);
  /// The same; the operation is one of `pending` until the device has ended it.
  std::shared_ptr<DeviceWork> start(Operation operation, PendingOperations& pending);
  void abort() noexcept;
  /// Empty, or the error that the backend itself has noticed.
  std::string error() const;
  /// Collective among all ranks of the group, of which `ranks` are some; null on the others.
  std::unique_ptr<DeviceCollectives> split(const std::vector<int>& ranks, const std::string& name) const;

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  DeviceBackendFactory maker_;
};

}  // namespace muster::comm
