#include "muster/hook/detail/half_lstm.h"

#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/List.h>
#include <ATen/core/function_schema.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace muster::hook {
namespace {

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kHalf ? tensor.to(at::kFloat) : tensor;
}

void widen(c10::IValue& value) {
  if (value.isTensor()) {
    value = widened(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> wide;
    for (const at::Tensor& tensor : value.toTensorVector()) wide.push_back(widened(tensor));
    value = std::move(wide);
  }
}

bool is_lstm(const c10::FunctionSchema& schema) { return schema.name() == "aten::lstm"; }

void run_in_float(Call& call) {
  if (at::autocast::get_autocast_dtype(at::kCPU) != at::kHalf) return call.proceed();
  // Otherwise autocast would narrow the matrix products that an LSTM is made of.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  for (auto& value : call.arguments()) widen(value);
  call.proceed();
}

constexpr Interceptor kHalfLstm{.name = "half LSTM",
                                .position = Position::half_lstm,
                                .takes = is_lstm,
                                .run = run_in_float,
                                .process_switch = kHalfLstmSwitch};

}  // namespace

void run_half_lstm_in_float() { install(kHalfLstm); }

}  // namespace muster::hook
