#pragma once  // for other rooms

#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "interceptor.h"

namespace muster::hook {

/// The storage that the tensor lies on. Bypasses storage(), which refuses a tensor whose memory is freed and whose
/// checks would run for every argument of every operator. Requires: tensor.has_storage().
inline c10::StorageImpl* storage_of(const at::Tensor& tensor) noexcept {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

/// For code that reads bytes without an operator: notifies the watcher of this tensor's storage as if an operator named
/// `op` had read the tensor and ended. Does nothing for an unwatched tensor. Throws: what
/// StorageWatcher::before_access() throws.
void require_values(const at::Tensor& tensor, const std::string& op);

/// Keeps what install_storage_interceptors() registers out of the process.
inline constexpr DisableVariable kStorageInterceptorsSwitch{"MUSTER_NO_KEY_FALLBACK"};

/// Installs the interceptors operator_override and storage_access, once per process, on the first call.
/// Throws: UsageError (MU160) if the environment forbids it, or if another library holds the key.
/// Thread-safe.
void install_storage_interceptors();

/// An operator that is about to use the bytes of a watched storage.
struct StorageAccess {
  std::string_view op;       ///< name of the operator, such as "aten::linear"
  const at::Tensor& tensor;  ///< the watched tensor among its arguments, maybe a view
  int64_t owner_id = 0;      ///< the id that the storage's owner gave it
  bool writes = false;       ///< whether the operator writes this argument
  int64_t replay = 0;        ///< the ReplayScope that it runs in; 0: none
};

/// Operators that run on this thread while it exists repeat those of a forward, so that the backward that follows can
/// use what they make. Scopes may be nested.
class ReplayScope {
 public:
  ReplayScope() noexcept;
  ~ReplayScope();
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  int64_t outer_;
};

/// Receives a notification of each operator that uses its storages. Operators that only look at sizes (views,
/// empty_like, ...) are not reported.
/// Thread safety: calls come from every thread that runs operators, at the same time.
class StorageWatcher {
 public:
  virtual ~StorageWatcher() = default;
  /// The bytes must be available when this returns. What it throws propagates out of the operator, which then does not
  /// run.
  virtual void before_access(const StorageAccess& access) = 0;
  /// The operator has ended. Called once for each before_access() that returned.
  virtual void after_access(int64_t owner_id) noexcept = 0;
};

class StorageRelay;

/// A storage whose memory is allocated and freed while its tensors live on: sizes, versions and the user's handles are
/// kept. Tensors made on it carry kEveryOperatorKey, and so do their views. They may outlive this object and the
/// watcher; an operator that accesses them then throws UsageError (MU166). Thread safety: the caller's.
class WatchedStorage {
 public:
  /// Starts without memory. `what` is its name in messages: "unit 'encoder.layers.0'".
  /// Requires: install_storage_interceptors() was called.
  WatchedStorage(std::weak_ptr<StorageWatcher> watcher, int64_t owner_id, std::string what, int64_t bytes,
                 at::Device device);

  bool filled() const noexcept;
  /// Takes this memory. Requires: it has at least as many bytes as the storage, on the storage's device.
  void fill(at::DataPtr memory);
  /// Frees the memory. Reading a pointer of a tensor on this storage then throws a c10::Error that says so.
  void free();

  /// A tensor on this storage that carries the key; offset and strides in elements.
  at::Tensor view(int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) const;
  /// Whether the tensor lies on this storage.
  bool holds(const at::Tensor& tensor) const noexcept;

 private:
  std::shared_ptr<StorageRelay> relay_;
  std::string what_;
  c10::intrusive_ptr<c10::StorageImpl> storage_;
};

/// The watcher of the storage that the tensor lies on; nullptr if it is not watched.
/// Throws: UsageError (MU166) if the watcher is gone.
std::shared_ptr<StorageWatcher> watcher_of(const at::Tensor& tensor);

/// Switches the key of this one tensor off, so that operators on it pass unnoticed, or on again. Views made meanwhile
/// keep the key state that the tensor had when they were made.
/// Thread safety: no operator may run on the tensor meanwhile.
void set_key(const at::Tensor& tensor, bool on);
bool has_key(const at::Tensor& tensor) noexcept;

}  // namespace muster::hook
