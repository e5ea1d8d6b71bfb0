#include "muster/optim/detail/norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/flat_parameters.h"
#include "optim/device_norm.h"
#include "optim/exact_sum.h"

namespace muster::optim {
namespace {

static_assert(kFlatPadding % kSumBlock == 0, "gradients are cut where blocks of a sum end");

at::Tensor largest(const std::vector<at::Tensor>& tensors, at::Device device) {
  auto most = at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  for (const auto& tensor : tensors)
    if (tensor.numel() > 0)
      most = at::maximum(most, at::linalg_vector_norm(tensor, INFINITY).to(at::kDouble));  // a NaN stays a NaN
  return most;
}

}  // namespace

at::Tensor in_memory_order(const at::Tensor& tensor) {
  auto real = tensor.is_complex() ? tensor.abs() : tensor;
  if (!real.is_non_overlapping_and_dense()) real = real.contiguous();
  const auto flat = real.as_strided({real.numel()}, {1});
  return flat.scalar_type() == at::kDouble ? flat : flat.to(at::kFloat);
}

void require_order(double p) {
  if (!(p > 0))
    throw ConfigError("MU144",
                      formatted("gradients are to be clipped by a norm of order {}; give one above 0, or infinity", p));
}

at::Tensor unrounded_power_sum(const std::vector<at::Tensor>& tensors, double p) {
  require_order(p);
  at::NoGradGuard no_grad;
  std::map<at::DeviceIndex, std::vector<at::Tensor>> on_devices;  // -1: the CPU
  for (const auto& tensor : tensors)
    if (tensor.defined()) on_devices[tensor.device().index()].push_back(tensor);
  auto most = at::zeros({}, at::kDouble);
  ExactSum sum;
  for (const auto& [index, on_one] : on_devices) {
    const auto device = on_one.front().device();
    if (std::isinf(p)) {
      most = at::maximum(most, largest(on_one, device).cpu());
    } else if (!device.is_cpu()) {
      add_device_powers(sum, on_one, p);
    } else {
      for (const auto& tensor : on_one) {
        const auto flat = in_memory_order(tensor);
        if (flat.scalar_type() == at::kDouble) add_powers(sum, flat.const_data_ptr<double>(), flat.numel(), p);
        else add_powers(sum, flat.const_data_ptr<float>(), flat.numel(), p);
      }
    }
  }
  if (std::isinf(p)) return most;
  const auto words = sum.words();
  return at::tensor(at::ArrayRef<int64_t>(words.data(), words.size()));
}

double rounded_power_sum(const at::Tensor& unrounded, double p) {
  if (std::isinf(p)) return unrounded.item<double>();
  ExactSum::Words words;
  std::copy_n(unrounded.const_data_ptr<int64_t>(), words.size(), words.begin());
  return ExactSum::value(words);
}

double power_sum(const std::vector<at::Tensor>& tensors, double p) {
  return rounded_power_sum(unrounded_power_sum(tensors, p), p);
}

double norm_from_power_sum(double sum, double p) {
  if (std::isinf(p)) return sum;
  return p == 2.0 ? std::sqrt(sum) : std::pow(sum, 1.0 / p);
}

double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1.0 || std::isnan(coefficient) ? coefficient : 1.0;
}

at::Tensor wrapped_number(double value) {
  auto number = at::scalar_tensor(value, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

void scale_by(const at::Tensor& tensor, double factor) { tensor.mul_(wrapped_number(factor)); }

// --- sums and norms on a device, by LibTorch's operators

namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kDigit = (int64_t{1} << 32) - 1;
constexpr int64_t kMantissa = (int64_t{1} << 52) - 1;
constexpr int64_t kNotFinite = 0x7ff;

/// The sum of each block, in the order of add_powers().
at::Tensor block_sums(const at::Tensor& flat, double p) {
  auto wide = flat.to(at::kDouble);
  if (const auto rest = flat.numel() % kSumBlock; rest > 0) wide = at::constant_pad_nd(wide, {0, kSumBlock - rest});
  const auto powers = (p == 2 ? wide * wide : p == 1 ? wide.abs() : wide.abs().pow(p)).view({-1, kLanes, kLanes});
  auto lanes = powers.select(1, 0).clone();
  for (int64_t row = 1; row < kLanes; ++row) lanes.add_(powers.select(1, row));
  const auto lane = [&](int64_t i) { return lanes.select(1, i); };
  return ((lane(0) + lane(4)) + (lane(2) + lane(6))) + ((lane(1) + lane(5)) + (lane(3) + lane(7)));
}

/// The words that ExactSum::add() makes of each term, added up.
at::Tensor words_of(const at::Tensor& terms) {
  const auto bits = terms.view(at::kLong);
  const auto exponent = bits.bitwise_right_shift(52).bitwise_and(kNotFinite);
  const auto finite = exponent.ne(kNotFinite);
  const auto normal = exponent.gt(0).to(at::kLong).bitwise_left_shift(52);
  const auto mantissa = bits.bitwise_and(kMantissa).bitwise_or(normal) * finite;
  const auto place = (exponent.clamp_min(1) - 1) * finite;
  const auto first = place.bitwise_right_shift(5), shift = place.bitwise_and(31);
  const auto low = mantissa.bitwise_and(kDigit).bitwise_left_shift(shift);
  const auto high = mantissa.bitwise_right_shift(32).bitwise_left_shift(shift);
  auto words = at::zeros({kSumWords}, bits.options());
  words.index_add_(0, first, low.bitwise_and(kDigit));
  words.index_add_(0, first + 1, low.bitwise_right_shift(32) + high.bitwise_and(kDigit));
  words.index_add_(0, first + 2, high.bitwise_right_shift(32));
  words.select(0, ExactSum::kDigits).copy_(terms.isinf().sum());
  words.select(0, ExactSum::kDigits + 1).copy_(terms.isnan().sum());
  return words;
}

/// Computes carry() of ExactSum for all digits at once.
at::Tensor carried(const at::Tensor& sums) {
  const auto last = sums.size(0) - 1;
  auto digits = sums;
  const auto pass_on = [&](const at::Tensor& carries) {
    auto rest = digits.clone();
    rest.slice(0, 0, last).bitwise_and_(kDigit);
    rest.slice(0, 1).add_(carries);
    digits = rest;
  };
  for (int i = 0; i < 2; ++i) pass_on(digits.slice(0, 0, last).bitwise_right_shift(32));
  // Now each digit is at most 2^32. A digit equal to kDigit passes on the carry that it gets, so its carry out is that
  // of the nearest lower digit that is not equal to kDigit.
  const auto lower = digits.slice(0, 0, last);
  const auto places = at::arange(last, lower.options());
  const auto decided_by = std::get<0>(at::where(lower.eq(kDigit), at::zeros_like(places), places).cummax(0));
  const auto carries = lower.bitwise_right_shift(32).index_select(0, decided_by);
  auto rest = digits.clone();
  rest.slice(0, 1).add_(carries);
  rest.slice(0, 0, last).bitwise_and_(kDigit);
  return rest;
}

at::Tensor words_of_all(const std::vector<at::Tensor>& tensors, at::Device device, double p) {
  const auto words = device_words(tensors, p);
  return words.defined() ? words : at::zeros({kSumWords}, at::TensorOptions(at::kLong).device(device));
}

/// Requires: exponents of normal numbers.
at::Tensor power_of_two(const at::Tensor& exponents) {
  return (exponents + 1023).bitwise_left_shift(52).view(at::kDouble);
}

}  // namespace

at::Tensor device_words(const std::vector<at::Tensor>& tensors, double p) {
  std::vector<at::Tensor> blocks;
  for (const auto& tensor : tensors)
    if (tensor.numel() > 0) blocks.push_back(block_sums(in_memory_order(tensor), p));
  return blocks.empty() ? at::Tensor() : words_of(at::cat(blocks));
}

at::Tensor with_carries(const at::Tensor& words) {
  constexpr int64_t kDigits = ExactSum::kDigits;
  return at::cat({carried(words.slice(0, 0, kDigits)), words.slice(0, kDigits)});
}

at::Tensor rounded(const at::Tensor& words) {
  constexpr int64_t kDigits = ExactSum::kDigits;
  const auto digits = carried(words.slice(0, 0, kDigits));
  const auto exponents = at::arange(kDigits, words.options()) * 32 - 1074;
  // In two factors, since float64 represents neither the smallest nor the largest of these powers.
  const auto first = exponents.clamp(-1000, 900);
  const auto terms = digits.to(at::kDouble) * power_of_two(first) * power_of_two(exponents - first);
  // cumsum() along the outer of two dimensions adds the numbers one after another, from the smallest.
  const auto sum = terms.unsqueeze(1).expand({kDigits, 2}).contiguous().cumsum(0).select(0, kDigits - 1).select(0, 0);
  using Limits = std::numeric_limits<double>;
  const auto infinity = at::full({}, Limits::infinity(), sum.options());
  const auto no_number = at::full({}, Limits::quiet_NaN(), sum.options());
  const auto finite = at::where(words.select(0, kDigits).gt(0), infinity, sum);
  return at::where(words.select(0, kDigits + 1).gt(0), no_number, finite);
}

void add_device_powers(ExactSum& sum, const std::vector<at::Tensor>& tensors, double p) {
  const auto all = device_words(tensors, p);
  if (!all.defined()) return;
  const auto on_host = all.cpu();
  ExactSum::Words words;
  std::copy_n(on_host.const_data_ptr<int64_t>(), words.size(), words.begin());
  sum.add(words);
}

std::optional<at::Device> single_device_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty() || tensors.front().is_cpu()) return std::nullopt;
  const auto device = tensors.front().device();
  const bool all = std::all_of(tensors.begin(), tensors.end(), [&](const auto& one) { return one.device() == device; });
  return all ? std::optional(device) : std::nullopt;
}

at::Tensor device_power_sum(const std::vector<at::Tensor>& tensors, at::Device device, double p) {
  require_order(p);
  const at::NoGradGuard no_grad;
  return std::isinf(p) ? largest(tensors, device) : rounded(words_of_all(tensors, device, p));
}

at::Tensor device_unrounded_power_sum(const std::vector<at::Tensor>& tensors, at::Device device, double p) {
  require_order(p);
  const at::NoGradGuard no_grad;
  return std::isinf(p) ? largest(tensors, device) : with_carries(words_of_all(tensors, device, p));
}

at::Tensor device_rounded_power_sum(const at::Tensor& unrounded, double p) {
  return std::isinf(p) ? unrounded : rounded(unrounded);
}

at::Tensor added_power_sums(const at::Tensor& a, const at::Tensor& b, double p) {
  return std::isinf(p) ? at::maximum(a, b) : a + b;
}

at::Tensor norm_from_power_sum(const at::Tensor& sum, double p) {
  if (std::isinf(p)) return sum;
  return p == 2.0 ? sum.sqrt() : sum.pow(1.0 / p);
}

at::Tensor clip_coefficient(const at::Tensor& norm, double max_norm) {
  const auto one = at::full({}, 1.0, norm.options()), most = at::full({}, max_norm, norm.options());
  const auto coefficient = at::div(most, norm + 1e-6);
  return at::where(coefficient.ge(1.0), one, coefficient);  // a NaN stays a NaN
}

void scale_by(const at::Tensor& gradient, const at::Tensor& factor) {
  // Computed in float32, because a kernel may round the factor to the gradient's dtype before it multiplies.
  if (at::isReducedFloatingType(gradient.scalar_type()))
    gradient.copy_(gradient.to(at::kFloat).mul_(factor.to(at::kFloat)));
  else gradient.mul_(factor);
}

}  // namespace muster::optim

namespace muster {

GradNorm::operator double() const {
  if (!value_) value_ = on_device_.item<double>();
  return *value_;
}

}  // namespace muster
