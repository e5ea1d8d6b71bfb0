#include "muster/runtime/flops.h"

#include <memory>
#include <string_view>
#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/types.h>

namespace muster {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

// LibTorch passes no context to a callback, so the count is thread-local.
struct Counting {
  int64_t count = 0;
  bool on = false;
};
Counting& counting_here() {
  thread_local Counting counting;
  return counting;
}

/// FLOPs of the matrix product of `a` and `b`, over the last two dims of each.
int64_t of_product(const at::Tensor& a, const at::Tensor& b) { return 2 * a.numel() * b.size(-1); }

int64_t of_convolution(Inputs inputs) {
  const auto& x = inputs[0].toTensor();
  const auto& weight = inputs[1].toTensor();
  const bool transposed = inputs[6].toBool();
  const auto stride = inputs[3].toIntVector(), padding = inputs[4].toIntVector(), dilation = inputs[5].toIntVector();
  int64_t places = x.size(0);
  for (int64_t i = 2; i < x.dim(); ++i) {
    const auto at = static_cast<std::size_t>(i - 2);
    const auto reach = dilation[at % dilation.size()] * (weight.size(i) - 1) + 1;
    places *= transposed ? x.size(i)
                         : (x.size(i) + 2 * padding[at % padding.size()] - reach) / stride[at % stride.size()] + 1;
  }
  return 2 * places * weight.numel();
}

int64_t flops_of(std::string_view name, Inputs inputs) {
  if (name == "aten::mm" || name == "aten::bmm") return of_product(inputs[0].toTensor(), inputs[1].toTensor());
  if (name == "aten::addmm" || name == "aten::baddbmm") return of_product(inputs[1].toTensor(), inputs[2].toTensor());
  if (name == "aten::convolution") return of_convolution(inputs);
  if (name.starts_with("aten::_scaled_dot_product_") && name.find("backward") == name.npos) {
    const auto &query = inputs[0].toTensor(), &key = inputs[1].toTensor(), &value = inputs[2].toTensor();
    const auto scores = query.numel() / query.size(-1) * key.size(-2);
    return 2 * scores * (query.size(-1) + value.size(-1));
  }
  return 0;
}

std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& call) {
  counting_here().count += flops_of(call.name(), call.inputs());
  return nullptr;
}

}  // namespace

int64_t measure_flops(const std::function<void()>& f) {
  auto& counting = counting_here();
  const auto before = std::exchange(counting, {.on = true});
  at::CallbackHandle handle = 0;
  if (!before.on)  // a second callback would count each call twice
    handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(see).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  const auto finish = c10::make_scope_exit([&] {
    if (!before.on) at::removeCallback(handle);
    counting = before;
  });
  f();
  return counting.count;
}

}  // namespace muster
