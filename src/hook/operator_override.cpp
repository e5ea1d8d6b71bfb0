#include "hook/operator_override.h"

#include <utility>

#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include "hook/operator_use.h"
#include "hook/watched_storage.h"

namespace muster::hook {
namespace {

/// Poses as the storage's allocator, where every view finds it. The storage's memory owns it, so it lives as long.
class OverrideRelay final : public c10::Allocator {
 public:
  OverrideRelay(std::shared_ptr<OperatorOverride> operator_override, c10::Allocator* under)
      : operator_override_(std::move(operator_override)), under_(under) {}
  const std::shared_ptr<OperatorOverride>& operator_override() const noexcept { return operator_override_; }
  at::DataPtr allocate(size_t bytes) override { return under_->allocate(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { under_->copy_data(to, from, bytes); }

 private:
  std::shared_ptr<OperatorOverride> operator_override_;
  c10::Allocator* under_;
};

struct KeptMemory {
  at::DataPtr memory;
  std::shared_ptr<OverrideRelay> relay;
};

const OverrideRelay* override_relay(const at::Tensor& tensor) {
  if (!tensor.defined() || !has_key(tensor) || !tensor.has_storage()) return nullptr;
  // Bypasses storage(), whose checks would run for every argument of every operator.
  return dynamic_cast<const OverrideRelay*>(
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->allocator());
}

}  // namespace

void mark_for_override(const at::Tensor& tensor, std::shared_ptr<OperatorOverride> operator_override) {
  at::NoGradGuard no_grad;
  set_key(tensor, false);
  const auto copy = tensor.detach().clone();
  auto* under = copy.storage().unsafeGetStorageImpl()->allocator();
  auto relay = std::make_shared<OverrideRelay>(std::move(operator_override), under);
  auto memory = under->allocate(copy.nbytes());
  auto* kept = new KeptMemory{std::move(memory), relay};
  at::DataPtr owned(
      kept->memory.get(), kept, [](void* p) { delete static_cast<KeptMemory*>(p); }, copy.device());
  // A storage of our own: its memory owns the relay, so no view outlives the relay.
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(copy.nbytes()), std::move(owned),
                             relay.get(),
                             /*resizable=*/false);
  const auto moved = at::empty({0}, copy.options()).set_(storage, 0, copy.sizes(), copy.strides());
  moved.copy_(copy);
  // The module's own handle moves to the marked memory; the key goes to it last, since set_data() copies keys.
  tensor.set_data(moved);
  set_key(tensor, true);
}

std::shared_ptr<OperatorOverride> override_of(const at::Tensor& tensor) {
  const auto* relay = override_relay(tensor);
  return relay ? relay->operator_override() : nullptr;
}

void take_over(Call& call) {
  const auto& use = use_of(call.schema());
  if (use.view || !use.needs_data) return call.proceed();
  const auto arguments = call.arguments();
  for (const auto& value : arguments) {
    const auto operator_override = value.isTensor() ? override_of(value.toTensor()) : nullptr;
    if (!operator_override) continue;
    // Switches off only this interceptor: if the override reads a sharded parameter, its values must still be gathered.
    const InterceptorGuard once(Priority::operator_override, false);
    if (operator_override->run(call.schema().name(), arguments.size(), call.stack())) return;
  }
  call.proceed();
}

}  // namespace muster::hook
