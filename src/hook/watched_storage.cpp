#include "hook/watched_storage.h"

#include <atomic>
#include <utility>

#include <ATen/core/function_schema.h>
#include <c10/util/SmallVector.h>

#include "hook/operator_override.h"
#include "muster/base/error.h"

namespace muster::hook {

/// Poses as the storage's allocator, where every view finds it. The storage's memory owns it, so it lives as long.
class StorageRelay final : public c10::Allocator {
 public:
  StorageRelay(std::weak_ptr<StorageWatcher> watcher, int64_t owner_id, std::string what)
      : watcher_(std::move(watcher)), owner_id_(owner_id), what_(std::move(what)) {}

  std::shared_ptr<StorageWatcher> watcher() const {
    if (auto watcher = watcher_.lock()) return watcher;
    throw UsageError("MU166", "the values of " + what_ +
                                  " are gone: the sharded model that held them has been destroyed; "
                                  "keep the prepared model alive as long as its module is used, or save it before");
  }
  int64_t owner_id() const noexcept { return owner_id_; }

  at::DataPtr allocate(size_t) override {
    throw UsageError("MU166", "the memory of " + what_ + " cannot be resized: it is sharded");
  }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  std::weak_ptr<StorageWatcher> watcher_;
  int64_t owner_id_;
  std::string what_;
};

namespace {

thread_local int64_t current_replay = 0;

const StorageRelay* relay_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return dynamic_cast<const StorageRelay*>(storage_of(tensor)->allocator());
}

/// The accesses of one operator. If before_access() of a watcher returned, it also gets after_access(), even after an
/// exception.
class Accesses {
 public:
  Accesses() = default;
  Accesses(const Accesses&) = delete;
  Accesses& operator=(const Accesses&) = delete;
  ~Accesses() {
    for (auto& [watcher, owner_id] : begun_) watcher->after_access(owner_id);
  }

  void begin(const at::Tensor& tensor, const std::string& op, bool writes) {
    const auto* relay = relay_of(tensor);
    if (!relay) return;
    auto watcher = relay->watcher();
    begun_.reserve(begun_.size() + 1);
    watcher->before_access({op, tensor, relay->owner_id(), writes, current_replay});
    begun_.emplace_back(std::move(watcher), relay->owner_id());
  }

  void begin(const c10::IValue& value, const std::string& op, bool writes) {
    if (value.isTensor()) {
      begin(value.toTensor(), op, writes);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) begin(tensor, op, writes);
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector())
        if (tensor) begin(*tensor, op, writes);
    }
  }

 private:
  c10::SmallVector<std::pair<std::shared_ptr<StorageWatcher>, int64_t>, 4> begun_;
};

void report_access(Call& call) {
  const auto& schema = call.schema();
  const auto& use = use_of(schema);
  // By its schema `contiguous` is as much a view as `t` is. If it copies, the operators that it calls come through here
  // in turn, so the copy is seen.
  if (use.view) return call.proceed();
  Accesses accesses;
  if (use.needs_data) {
    const auto arguments = call.arguments();
    for (size_t i = 0; i < arguments.size(); ++i)
      accesses.begin(arguments[i], schema.name(), i < 64 && (use.written >> i & 1));
  }
  // The bytes are there until the operator ends, so the operators that it calls need not be seen.
  const InterceptorGuard unseen({Priority::operator_override, Priority::storage_access}, false);
  call.proceed();
}

constexpr Interceptor kStorageAccess{.name = "storage access",
                                     .priority = Priority::storage_access,
                                     .takes = nullptr,
                                     .run = report_access,
                                     .disabled_by = kStorageInterceptorsSwitch};

// No function of LibTorch adds a key to an existing tensor. key_set_ is protected, so a derived class accesses it.
struct ImplAccess : c10::TensorImpl {
  static c10::DispatchKeySet& keys(c10::TensorImpl& impl) { return impl.*(&ImplAccess::key_set_); }
};

// These two functions exist from LibTorch 2.13 on. Without them the pointer is null, and its error says only "not
// allocated yet".
template <class Storage>
void forbid_pointers([[maybe_unused]] Storage& storage, [[maybe_unused]] const std::string& message) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}
template <class Storage>
void allow_pointers([[maybe_unused]] Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) storage.clear_data_ptr_access_error_msg_();
}

}  // namespace

ReplayScope::ReplayScope() noexcept : outer_(current_replay) {
  static std::atomic<int64_t> last{0};
  current_replay = ++last;
}

ReplayScope::~ReplayScope() { current_replay = outer_; }

std::shared_ptr<StorageWatcher> watcher_of(const at::Tensor& tensor) {
  const auto* relay = relay_of(tensor);
  return relay ? relay->watcher() : nullptr;
}

void install_storage_interceptors() {
  auto refusal = install(kOperatorOverride);
  if (refusal.empty()) refusal = install(kStorageAccess);
  if (refusal.empty()) return;
  throw UsageError("MU160", "sharded training needs the key fallback, but " + refusal + "; or train with strategy ddp");
}

WatchedStorage::WatchedStorage(std::weak_ptr<StorageWatcher> watcher, int64_t owner_id, std::string what, int64_t bytes,
                               at::Device device)
    : relay_(std::make_shared<StorageRelay>(std::move(watcher), owner_id, what)), what_(std::move(what)) {
  // The relay is the allocator: every tensor on the storage leads to the watcher, and only the relay could resize it.
  storage_ = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                   at::DataPtr(nullptr, device), relay_.get(), /*resizable=*/false);
  free();
}

// Unchecked pointers, here and below, because data_ptr() throws while the memory is freed.
bool WatchedStorage::filled() const noexcept { return storage_->_mutable_data_ptr_no_checks().get() != nullptr; }

void WatchedStorage::fill(at::DataPtr memory) {
  struct Kept {
    at::DataPtr memory;
    std::shared_ptr<StorageRelay> relay;
  };
  void* address = memory.get();
  const auto device = memory.device();
  auto* kept = new Kept{std::move(memory), relay_};
  allow_pointers(*storage_);
  // Not resize_() or set_(): tensors on the storage keep it, their sizes and their versions while only memory comes and
  // goes.
  storage_->set_data_ptr_noswap(at::DataPtr(
      address, kept, [](void* p) { delete static_cast<Kept*>(p); }, device));
  if (!address)
    forbid_pointers(
        *storage_,
        "MU161: the values of " + what_ +
            " are sharded and not in memory now, so torch::save and raw pointers cannot reach them: write weights by "
            "save_model, and read or change them in summon_full_params");
}

void WatchedStorage::free() { fill(at::DataPtr(nullptr, storage_->_mutable_data_ptr_no_checks().device())); }

at::Tensor WatchedStorage::view(int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides,
                                at::ScalarType dtype) const {
  const auto backend = c10::computeDispatchKey(dtype, at::kStrided, storage_->_mutable_data_ptr_no_checks().device());
  // Built by hand, since an operator would make the tensor without our key.
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage_), c10::DispatchKeySet({backend, kEveryOperatorKey}), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

bool WatchedStorage::holds(const at::Tensor& tensor) const noexcept {
  return tensor.has_storage() && storage_of(tensor) == storage_.get();
}

void require_values(const at::Tensor& tensor, const std::string& op) { Accesses().begin(tensor, op, /*writes=*/false); }

void set_key(const at::Tensor& tensor, bool on) {
  auto& keys = ImplAccess::keys(*tensor.unsafeGetTensorImpl());
  keys = on ? keys.add(kEveryOperatorKey) : keys.remove(kEveryOperatorKey);
}

bool has_key(const at::Tensor& tensor) noexcept { return tensor.key_set().has(kEveryOperatorKey); }

}  // namespace muster::hook
