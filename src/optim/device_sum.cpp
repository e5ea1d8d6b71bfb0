#include "optim/device_sum.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace muster::optim {
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

/// Requires: exponents of normal numbers.
at::Tensor power_of_two(const at::Tensor& exponents) {
  return (exponents + 1023).bitwise_left_shift(52).view(at::kDouble);
}

}  // namespace

at::Tensor device_words(const std::vector<at::Tensor>& tensors, double p) {
  std::vector<at::Tensor> blocks;
  for (const auto& tensor : tensors)
    if (tensor.numel() > 0) blocks.push_back(block_sums(tensor, p));
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

}  // namespace muster::optim
