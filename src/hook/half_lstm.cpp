#include "muster/hook/detail/half_lstm.h"

#include <tuple>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/lstm_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "muster/base/detail/environment.h"

namespace muster::hook {
namespace {

using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

constexpr auto kBelow = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::AutocastCPU);

bool asks_for_half() { return at::autocast::get_autocast_dtype(at::kCPU) == at::kHalf; }

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kHalf ? tensor.to(at::kFloat) : tensor;
}

std::vector<at::Tensor> widened(at::TensorList tensors) {
  std::vector<at::Tensor> wide;
  for (const auto& tensor : tensors) wide.push_back(widened(tensor));
  return wide;
}

Result lstm_of_sequence(c10::DispatchKeySet keys, const at::Tensor& input, at::TensorList hx, at::TensorList params,
                        bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional,
                        bool batch_first) {
  if (!asks_for_half())
    return at::_ops::lstm_input::redispatch(keys & kBelow, input, hx, params, has_biases, num_layers, dropout, train,
                                            bidirectional, batch_first);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return at::lstm(widened(input), widened(hx), widened(params), has_biases, num_layers, dropout, train, bidirectional,
                  batch_first);
}

Result lstm_of_packed(c10::DispatchKeySet keys, const at::Tensor& data, const at::Tensor& batch_sizes,
                      at::TensorList hx, at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                      bool train, bool bidirectional) {
  if (!asks_for_half())
    return at::_ops::lstm_data::redispatch(keys & kBelow, data, batch_sizes, hx, params, has_biases, num_layers,
                                           dropout, train, bidirectional);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return at::lstm(widened(data), batch_sizes, widened(hx), widened(params), has_biases, num_layers, dropout, train,
                  bidirectional);
}

}  // namespace

bool half_lstm_allowed() {
  const auto value = Environment::of_process().find(kNoHalfLstmVariable);
  return !value || *value == "0";
}

void run_half_lstm_in_float() {
  if (!half_lstm_allowed()) return;
  [[gnu::used]] static torch::Library* const library = [] {  // kept where leaks are looked for
    auto* entered = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastCPU, __FILE__, __LINE__);
    entered->impl("lstm.input", TORCH_FN(lstm_of_sequence));
    entered->impl("lstm.data", TORCH_FN(lstm_of_packed));
    return entered;  // never taken back: another thread may be inside
  }();
}

}  // namespace muster::hook
