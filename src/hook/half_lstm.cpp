#include "hook/half_lstm.h"

#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace muster::hook {
namespace {

at::Tensor widened(const at::Tensor& tensor, at::ScalarType narrow) {
  return tensor.defined() && tensor.scalar_type() == narrow ? tensor.to(at::kFloat) : tensor;
}

void widen(c10::IValue& value, at::ScalarType narrow) {
  if (value.isTensor()) {
    value = widened(value.toTensor(), narrow);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> wide;
    for (const at::Tensor& tensor : value.toTensorVector()) wide.push_back(widened(tensor, narrow));
    value = std::move(wide);
  }
}

bool is_lstm(const c10::FunctionSchema& schema) { return schema.name() == "aten::lstm"; }

/// LibTorch checks this for bfloat16 tensors, but not for those that autocast makes; oneDNN then finds no kernel.
bool has_bfloat16_kernel() {
  static const bool has = [] {
    const auto asks = c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
    return !asks || asks->typed<bool()>().call();  // without oneDNN, LibTorch's own kernel takes every dtype
  }();
  return has;
}

bool has_kernel(at::ScalarType dtype) {
  return dtype != at::kHalf && (dtype != at::kBFloat16 || has_bfloat16_kernel());
}

void run_in_float(Call& call) {
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  if (has_kernel(dtype)) return call.proceed();
  // Otherwise autocast would cast the matrix products inside the LSTM down again.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  for (auto& value : call.arguments()) widen(value, dtype);
  call.proceed();
}

constexpr Interceptor kHalfLstm{.name = "half LSTM",
                                .priority = Priority::half_lstm,
                                .takes = is_lstm,
                                .run = run_in_float,
                                .disabled_by = kHalfLstmSwitch};

}  // namespace

void run_half_lstm_in_float() { install(kHalfLstm); }

}  // namespace muster::hook
