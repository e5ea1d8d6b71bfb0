#include "hook/operator_flops.h"

#include <ATen/core/Tensor.h>

namespace muster::hook {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

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

}  // namespace

int64_t flops_of(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
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

}  // namespace muster::hook
