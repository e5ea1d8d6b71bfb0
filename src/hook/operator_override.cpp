#include "muster/hook/detail/operator_takeover.h"

#include <utility>

#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include "hook/operator_use.h"
#include "hook/takeover.h"
#include "muster/hook/detail/watched_storage.h"

namespace muster::hook {
namespace {

/// Stands as the storage's allocator, where every view finds it; owned by the storage's memory, so it lives as long.
class TakeoverRelay final : public c10::Allocator {
 public:
  TakeoverRelay(std::shared_ptr<OperatorTakeover> takeover, c10::Allocator* under)
      : takeover_(std::move(takeover)), under_(under) {}
  const std::shared_ptr<OperatorTakeover>& takeover() const noexcept { return takeover_; }
  at::DataPtr allocate(size_t bytes) override { return under_->allocate(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { under_->copy_data(to, from, bytes); }

 private:
  std::shared_ptr<OperatorTakeover> takeover_;
  c10::Allocator* under_;
};

struct KeptMemory {
  at::DataPtr memory;
  std::shared_ptr<TakeoverRelay> relay;
};

const TakeoverRelay* takeover_relay(const at::Tensor& tensor) {
  if (!tensor.defined() || !has_key(tensor) || !tensor.has_storage()) return nullptr;
  // Past storage(), whose checks would be made for every argument of every operator.
  return dynamic_cast<const TakeoverRelay*>(
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->allocator());
}

}  // namespace

void mark_for_takeover(const at::Tensor& tensor, std::shared_ptr<OperatorTakeover> takeover) {
  at::NoGradGuard no_grad;
  set_key(tensor, false);
  const auto copy = tensor.detach().clone();
  auto* under = copy.storage().unsafeGetStorageImpl()->allocator();
  auto relay = std::make_shared<TakeoverRelay>(std::move(takeover), under);
  auto memory = under->allocate(copy.nbytes());
  auto* kept = new KeptMemory{std::move(memory), relay};
  at::DataPtr owned(
      kept->memory.get(), kept, [](void* p) { delete static_cast<KeptMemory*>(p); }, copy.device());
  // A storage of ours: its memory owns the relay, so no view outlives that.
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(copy.nbytes()), std::move(owned),
                             relay.get(),
                             /*resizable=*/false);
  const auto moved = at::empty({0}, copy.options()).set_(storage, 0, copy.sizes(), copy.strides());
  moved.copy_(copy);
  // The module's own handle moves to the marked memory; the key goes to it last, since set_data() copies keys.
  at::Tensor handle = tensor;
  handle.set_data(moved);
  set_key(tensor, true);
}

std::shared_ptr<OperatorTakeover> takeover_of(const at::Tensor& tensor) {
  const auto* relay = takeover_relay(tensor);
  return relay ? relay->takeover() : nullptr;
}

void take_over(Call& call) {
  const auto& use = use_of(call.schema());
  if (use.view || !use.needs_data) return call.proceed();
  const auto arguments = call.arguments();
  for (const auto& value : arguments) {
    const auto takeover = value.isTensor() ? takeover_of(value.toTensor()) : nullptr;
    if (!takeover) continue;
    // Only this one: operators of the takeover that read a sharded parameter must find its values.
    const InterceptorGuard once(Priority::operator_takeover, false);
    if (takeover->run(call.schema().name(), arguments.size(), call.stack())) return;
  }
  call.proceed();
}

}  // namespace muster::hook
