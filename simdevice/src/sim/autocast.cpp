#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "sim/call.h"
#include "sim/kernels.h"
#include "sim/registration.h"

namespace muster::sim {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::AutocastPrivateUse1;
using Stack = torch::jit::Stack;

Values arguments_of(const c10::OperatorHandle& op, Stack& stack) {
  const auto count = op.schema().arguments().size();
  Values arguments(stack.end() - static_cast<ptrdiff_t>(count), stack.end());
  torch::jit::drop(stack, count);
  return arguments;
}

/// Calls the operator with its floating-point tensors in this dtype.
void call_in(at::ScalarType dtype, const c10::OperatorHandle& op, Stack& stack, const Values& arguments) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKeySet{kKey});
  for (auto& argument : arguments)
    stack.push_back(
        mapped(argument, [&](const at::Tensor& tensor) { return at::autocast::cached_cast(dtype, tensor, kType); }));
  op.callBoxed(&stack);
}

void in_lower_precision(const c10::OperatorHandle& op, Stack* stack) {
  call_in(at::autocast::get_autocast_dtype(kType), op, *stack, arguments_of(op, *stack));
}

void in_float(const c10::OperatorHandle& op, Stack* stack) {
  call_in(at::kFloat, op, *stack, arguments_of(op, *stack));
}

void in_widest(const c10::OperatorHandle& op, Stack* stack) {
  const auto arguments = arguments_of(op, *stack);
  auto dtype = at::autocast::get_autocast_dtype(kType);
  for (const auto& tensor : tensors_in(arguments))
    if (tensor.defined()) dtype = at::autocast::prioritize(dtype, tensor, kType);
  call_in(dtype, op, *stack, arguments);
}

/// Makes results float unless the caller asks for another dtype. The arguments stay.
void to_float(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKeySet{kKey});
  auto arguments = arguments_of(op, *stack);
  const bool eligible = arguments[0].isTensor() && at::autocast::is_eligible(arguments[0].toTensor(), kType);
  for (size_t i = 0; eligible && i < arguments.size(); ++i)
    if (op.schema().arguments()[i].name() == "dtype" && arguments[i].isNone())
      arguments[i] = static_cast<int64_t>(at::kFloat);
  stack->insert(stack->end(), arguments.begin(), arguments.end());
  op.callBoxed(stack);
}

template <auto kKernel>
void register_all(torch::Library& library, const std::vector<std::string>& names) {
  for (const auto& name : names) library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<kKernel>());
}

// These are the lists that LibTorch uses for CUDA: `op` or `op, overload`.
#define MUSTER_SIM_NAME_OF(op, overload, ...) (std::string(#overload).empty() ? #op : #op "." #overload),
#define MUSTER_SIM_NAME(...) MUSTER_SIM_NAME_OF(__VA_ARGS__, , )
const std::vector<std::string>& lower_precision() {
  static const std::vector<std::string> names = {AT_FORALL_LOWER_PRECISION_FP(MUSTER_SIM_NAME)};
  return names;
}
const std::vector<std::string>& single_precision() {
  static const std::vector<std::string> names = {AT_FORALL_FP32(MUSTER_SIM_NAME) "norm.Scalar", "norm.ScalarOpt_dim"};
  return names;
}
const std::vector<std::string>& single_results() {
  static const std::vector<std::string> names = {AT_FORALL_FP32_SET_OPT_DTYPE(MUSTER_SIM_NAME)};
  return names;
}
const std::vector<std::string>& widest() {
  static const std::vector<std::string> names = {AT_FORALL_PROMOTE(MUSTER_SIM_NAME)};
  return names;
}
#undef MUSTER_SIM_NAME
#undef MUSTER_SIM_NAME_OF

}  // namespace

void register_autocast() {
  // Without the fallthrough, every other operator fails under autocast.
  kept_library("_", kKey).fallback(torch::CppFunction::makeFallthrough());
  auto& library = kept_library("aten", kKey);
  register_all<&in_lower_precision>(library, lower_precision());
  register_all<&in_float>(library, single_precision());
  register_all<&to_float>(library, single_results());
  register_all<&in_widest>(library, widest());
}

}  // namespace muster::sim
