#include "hook/operator_override.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

namespace muster::hook {
namespace {

bool is_metadata_operator(const std::string& name) {
  static const std::unordered_set<std::string> names = {"aten::data",
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
  return names.contains(name);
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

}  // namespace

const OperatorUse& use_of(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorUse> cache;
  auto found = cache.find(&schema);
  return found != cache.end() ? found->second : cache.emplace(&schema, read_schema(schema)).first->second;
}

void mark_for_override(const at::Tensor& tensor, std::shared_ptr<OperatorOverride> operator_override) {
  at::NoGradGuard no_grad;
  set_key(tensor, false);
  const auto copy = tensor.detach().clone();
  auto relay = std::make_shared<OverrideRelay>(std::move(operator_override), copy.storage().allocator());
  // A storage of our own over the copy's memory: its memory owns the relay, so no view outlives the relay.
  auto memory = c10::InefficientStdFunctionContext::makeDataPtr(
      copy.mutable_data_ptr(), [whole = copy.storage(), relay](void*) {}, copy.device());
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(copy.nbytes()), std::move(memory),
                             relay.get(), /*resizable=*/false);
  const auto moved = at::empty({0}, copy.options()).set_(storage, 0, copy.sizes(), copy.strides());
  // The module's own handle moves to the marked memory; the key goes to it last, since set_data() copies keys.
  tensor.set_data(moved);
  set_key(tensor, true);
}

std::shared_ptr<OperatorOverride> override_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !has_key(tensor) || !tensor.has_storage()) return nullptr;
  const auto* relay = dynamic_cast<const OverrideRelay*>(storage_of(tensor)->allocator());
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
