#include "muster/testing/compare.h"

#include <cstring>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "muster/base/format.h"

namespace muster::testing {
namespace {

std::string kind_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << " " << tensor.sizes();
  return text.str();
}

std::string index_of(int64_t flat, at::IntArrayRef shape) {
  std::string text;
  for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
    text = std::to_string(flat % *size) + (text.empty() ? "" : ", ") + text;
    flat /= *size;
  }
  return "[" + text + "]";
}

std::string different_kinds(const at::Tensor& actual, const at::Tensor& expected) {
  if (!actual.defined() || !expected.defined())
    return actual.defined() == expected.defined() ? "" : "one of the tensors is undefined";
  if (actual.scalar_type() == expected.scalar_type() && actual.sizes() == expected.sizes()) return "";
  return formatted("got {}, expected {}", kind_of(actual), kind_of(expected));
}

std::string value_at(const at::Tensor& tensor, int64_t index) {
  std::ostringstream text;
  text.precision(17);
  if (at::isFloatingType(tensor.scalar_type())) text << tensor.view(-1)[index].item<double>();
  else text << tensor.view(-1)[index].item<int64_t>();
  return text.str();
}

std::string describe(const at::Tensor& actual, const at::Tensor& expected, int64_t first, int64_t count) {
  return formatted("{} of {} elements differ, first at {}: got {}, expected {}", count, actual.numel(),
                   index_of(first, actual.sizes()), value_at(actual, first), value_at(expected, first));
}

}  // namespace

std::string difference_in_bits(const at::Tensor& actual, const at::Tensor& expected) {
  if (auto kinds = different_kinds(actual, expected); !kinds.empty() || !actual.defined()) return kinds;
  const at::Tensor a = actual.detach().cpu().contiguous(), b = expected.detach().cpu().contiguous();
  const auto* left = static_cast<const char*>(a.const_data_ptr());
  const auto* right = static_cast<const char*>(b.const_data_ptr());
  int64_t first = -1, count = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (std::memcmp(left + i * a.element_size(), right + i * a.element_size(), a.element_size()) == 0) continue;
    if (count++ == 0) first = i;
  }
  return count == 0 ? "" : describe(a, b, first, count);
}

std::string difference(const at::Tensor& actual, const at::Tensor& expected, double relative, double absolute) {
  if (auto kinds = different_kinds(actual, expected); !kinds.empty() || !actual.defined()) return kinds;
  const at::Tensor a = actual.detach().cpu().contiguous(), b = expected.detach().cpu().contiguous();
  const at::Tensor apart =
      at::isclose(a.to(at::kDouble), b.to(at::kDouble), relative, absolute, true).logical_not().view(-1);
  int64_t count = apart.sum().item<int64_t>();
  if (count == 0) return "";
  int64_t first = apart.to(at::kInt).argmax().item<int64_t>();
  double largest = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
  return describe(a, b, first, count) + formatted("; the largest difference is {}", largest);
}

}  // namespace muster::testing
