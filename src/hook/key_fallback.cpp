#include "muster/hook/detail/key_fallback.h"

#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include "hook/takeover.h"
#include "muster/base/error.h"
#include "muster/hook/detail/require_values.h"

namespace muster::hook {

/// Stands as the storage's allocator, where every view finds it; owned by the storage's memory, so it lives as long.
class StorageRelay final : public c10::Allocator {
 public:
  StorageRelay(std::weak_ptr<StorageWatcher> watcher, int64_t tag, std::string what)
      : watcher_(std::move(watcher)), tag_(tag), what_(std::move(what)) {}

  std::shared_ptr<StorageWatcher> watcher() const {
    if (auto watcher = watcher_.lock()) return watcher;
    throw UsageError("MU166", "the values of " + what_ +
                                  " are gone: the sharded model that held them has been destroyed; "
                                  "keep the prepared model alive as long as its module is used, or save it before");
  }
  int64_t tag() const noexcept { return tag_; }

  at::DataPtr allocate(size_t) override {
    throw UsageError("MU166", "the memory of " + what_ + " cannot be resized: it is sharded");
  }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  std::weak_ptr<StorageWatcher> watcher_;
  int64_t tag_;
  std::string what_;
};

namespace {

/// What an operator does with the bytes of its arguments; a function of its schema.
struct OperatorUse {
  bool needs_data = true;
  bool view = false;
  uint64_t written = 0;  // bit i: argument i
};

bool is_metadata_operator(const std::string& name) {
  static const std::unordered_set<std::string> kNames = {"aten::data",
                                                         "aten::empty_like",
                                                         "aten::full_like",
                                                         "aten::is_complex",
                                                         "aten::is_floating_point",
                                                         "aten::is_inference",
                                                         "aten::is_leaf",
                                                         "aten::is_pinned",
                                                         "aten::is_same_size",
                                                         "aten::is_set_to",
                                                         "aten::is_signed",
                                                         "aten::new_empty",
                                                         "aten::new_empty_strided",
                                                         "aten::new_full",
                                                         "aten::new_ones",
                                                         "aten::new_zeros",
                                                         "aten::numel",
                                                         "aten::ones_like",
                                                         "aten::output_nr",
                                                         "aten::rand_like",
                                                         "aten::randint_like",
                                                         "aten::randn_like",
                                                         "aten::requires_grad_",
                                                         "aten::result_type",
                                                         "aten::retain_grad",
                                                         "aten::retains_grad",
                                                         "aten::size",
                                                         "aten::stride",
                                                         "aten::sym_is_contiguous",
                                                         "aten::sym_numel",
                                                         "aten::sym_size",
                                                         "aten::sym_storage_offset",
                                                         "aten::sym_stride",
                                                         "aten::zeros_like",
                                                         "aten::_has_compatible_shallow_copy_type",
                                                         "aten::_shape_as_tensor",
                                                         "aten::_version"};
  return kNames.contains(name);
}

OperatorUse read_schema(const c10::FunctionSchema& schema) {
  OperatorUse use;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size() && i < 64; ++i)
    if (const auto* alias = arguments[i].alias_info(); alias && alias->isWrite()) use.written |= uint64_t{1} << i;
  use.needs_data = !is_metadata_operator(schema.name());
  use.view = use.written == 0 && !schema.returns().empty();
  for (const auto& result : schema.returns()) use.view &= result.alias_info() != nullptr;
  return use;
}

const OperatorUse& use_of(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorUse> cache;
  auto found = cache.find(&schema);
  return found != cache.end() ? found->second : cache.emplace(&schema, read_schema(schema)).first->second;
}

const StorageRelay* relay_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return dynamic_cast<const StorageRelay*>(
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->allocator());
}

/// The accesses of one operator. A watcher whose before_access() returned gets after_access(), also after an exception.
class Accesses {
 public:
  Accesses() = default;
  Accesses(const Accesses&) = delete;
  Accesses& operator=(const Accesses&) = delete;
  ~Accesses() {
    for (auto& [watcher, tag] : begun_) watcher->after_access(tag);
  }

  void begin(const at::Tensor& tensor, const std::string& op, bool writes) {
    const auto* relay = relay_of(tensor);
    if (!relay) return;
    auto watcher = relay->watcher();
    begun_.reserve(begun_.size() + 1);
    watcher->before_access({op, tensor, relay->tag(), writes});
    begun_.emplace_back(std::move(watcher), relay->tag());
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

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFallbackKey);
  const auto& schema = op.schema();
  const auto use = use_of(schema);
  // By its schema `contiguous` is as much a view as `t` is. The operators it is made of, seen here in turn, tell
  // whether it copies.
  if (use.view) return op.redispatchBoxed(below, stack);
  if (use.needs_data && run_takeover(schema.name(), schema.arguments().size(), *stack)) return;

  Accesses accesses;
  if (use.needs_data) {
    const auto arguments = torch::jit::last(*stack, schema.arguments().size());
    for (size_t i = 0; i < arguments.size(); ++i)
      accesses.begin(arguments[i], schema.name(), i < 64 && (use.written >> i & 1));
  }
  c10::impl::ExcludeDispatchKeyGuard unseen(kFallbackKey);
  op.redispatchBoxed(below, stack);
}

struct ImplAccess : c10::TensorImpl {
  static c10::DispatchKeySet& keys(c10::TensorImpl& impl) { return impl.*(&ImplAccess::key_set_); }
};

// These two exist from LibTorch 2.13 on. Without both, the pointer is null and says only "not allocated yet".
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

bool key_fallback_allowed() {
  const char* value = std::getenv(kNoKeyFallbackVariable);
  return !value || !*value || std::string_view(value) == "0";
}

void install_key_fallback() {
  if (!key_fallback_allowed())
    throw UsageError("MU160", std::string("sharded training needs the key fallback, which the environment variable ") +
                                  kNoKeyFallbackVariable +
                                  " keeps out of this process; unset it, or train with strategy ddp");
  static std::mutex mutex;
  static std::unique_ptr<torch::Library> registration;
  std::scoped_lock lock(mutex);
  if (registration) return;
  try {
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kFallbackKey, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    registration = std::move(library);
  } catch (const c10::Error& error) {
    throw UsageError(
        "MU160", std::string("the dispatch key ") + c10::toString(kFallbackKey) +
                     " already has a fallback of another library, so sharded training cannot run in this process (" +
                     error.what_without_backtrace() + ")");
  }
}

WatchedStorage::WatchedStorage(std::weak_ptr<StorageWatcher> watcher, int64_t tag, std::string what, int64_t bytes,
                               at::Device device)
    : relay_(std::make_shared<StorageRelay>(std::move(watcher), tag, what)), what_(std::move(what)) {
  storage_ = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                   at::DataPtr(nullptr, device), relay_.get(), /*resizable=*/false);
  free();
}

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
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage_), c10::DispatchKeySet({backend, kFallbackKey}), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

bool WatchedStorage::holds(const at::Tensor& tensor) const noexcept {
  return tensor.has_storage() &&
         tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage_.get();
}

void require_values(const at::Tensor& tensor, const std::string& op) { Accesses().begin(tensor, op, /*writes=*/false); }

void set_key(const at::Tensor& tensor, bool on) {
  auto& keys = ImplAccess::keys(*tensor.unsafeGetTensorImpl());
  keys = on ? keys.add(kFallbackKey) : keys.remove(kFallbackKey);
}

bool has_key(const at::Tensor& tensor) noexcept { return tensor.key_set().has(kFallbackKey); }

}  // namespace muster::hook
