#pragma once  // for other rooms

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/operation.h"
#include "muster/comm/rendezvous.h"
#include "muster/device/options.h"

/// A c10d::Backend that a program gives in code, or that a shared object defines. One for tensors in host memory runs
/// all operations of its groups (make_over_backend()); one for the tensors of a device stands beside a host backend
/// (DeviceCollectives).
/// Why: docs/decisions/0171-two-doors-for-communication.md.
namespace muster::comm {

class Collectives;

/// The backend for a device, and the text that plan() shows about it.
struct FoundBackend {
  std::shared_ptr<const BackendEntry> entry;  ///< null: tensors of the device are staged through host memory
  std::string note;
};

/// The backend that the option names for tensors of `device`. An object is opened as open_object() opens it.
/// Throws: ConfigError (MU558) if there is no object of that name, (MU562) if it cannot be opened, is not one of
/// Muster's or was built with other versions, (MU563) if it is for another type of device than the ranks have.
/// Why: docs/decisions/0151-a-backend-of-a-device-is-an-object.md.
FoundBackend find_device_backend(const DeviceBackend& wanted, c10::DeviceType device);

/// Throws: ConfigError (MU560) if the entry cannot be a device_backend.
void check_device_backend(const BackendEntry& entry);

/// How ranks that create a backend together learn whether all of them succeeded.
struct BackendAgreement {
  c10::intrusive_ptr<c10d::Store> store;  ///< a store that only this agreement uses
  int rank = 0, size = 1;                 ///< this rank and the number of ranks that create the backend
  std::chrono::milliseconds timeout{};    ///< how long ranks that have created theirs wait for the others
  std::string group{};                    ///< the group of `rank`, such as "group world/0"
  std::string what{};                     ///< what is created, such as "the backend nccl for cuda"
};

/// Returns what `make` returns, once it has returned on all ranks. If `make` throws on a rank, or if a rank has waited
/// for the others longer than the timeout, the first such rank writes its error into the store, and all ranks throw it.
/// A rank whose `make` waits for that rank throws it when `make` gives up.
/// Throws: CommError with the id of what was thrown, or MU575 if that has none; CommError (MU058) if the store is lost.
/// Collective.
c10::intrusive_ptr<c10d::Backend> make_on_all_ranks(const BackendAgreement& agreement,
                                                    const std::function<c10::intrusive_ptr<c10d::Backend>()>& make);

/// An entry together with what its factory needs: makes the backend of a group, and of its subgroups.
/// Why: docs/decisions/0141-a-door-to-a-backend-of-a-device.md.
struct CustomBackend {
  BackendEntry entry;
  GroupOptions options;
  c10::intrusive_ptr<c10d::Store> store;  ///< a part of it belongs to each group, by name

  /// Collective: the ranks of the group. Throws: what make_on_all_ranks() throws; MU560 if a factory returns null.
  c10::intrusive_ptr<c10d::Backend> make(const std::string& name, int rank, int size) const;
  /// Null on ranks that are not in `ranks`. Collective: all ranks of `parent`. Throws: what make() throws.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Backend>& parent,
                                          const std::vector<int>& ranks, const std::string& name) const;

 private:
  BackendAgreement agreement(const std::string& name, int rank, int size, std::string group) const;
};

/// The collectives of a group through a backend for tensors in host memory. Collective: the ranks of the group.
/// Throws: what CustomBackend::make() throws.
std::unique_ptr<Collectives> make_over_backend(const CustomBackend& custom, const std::string& group, int rank,
                                               int size);

/// Whether a c10d::Backend has a call for operations of this kind. It has for all kinds whose tensors have one shape on
/// every rank.
bool has_backend_call(OperationKind kind);

/// Starts the operation by the backend's call. A mean is started as a sum, since not every backend has it. Other memory
/// that the backend works on is put into `kept`, which must live until the work is done.
/// Requires: has_backend_call().
c10::intrusive_ptr<c10d::Work> call_backend(c10d::Backend& backend, const Operation& operation,
                                            std::vector<at::Tensor>& kept);

/// Aborts the backend. A backend that cannot abort ends its waits by its own timeout.
void abort_backend(c10d::Backend& backend) noexcept;

/// Divides the sum that a mean was started as by `size`, if this rank has the result.
void finish_mean(const Operation& operation, int rank, int size);

}  // namespace muster::comm
