#include "optim/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace muster::optim {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kDigit = (int64_t{1} << 32) - 1;
constexpr int kLowestExponent = -1074;  // exponent of the smallest float64

void carry(ExactSum::Words& words) {
  for (size_t i = 0; i + 1 < ExactSum::kDigits; ++i) {
    words[i + 1] += words[i] >> 32;
    words[i] &= kDigit;
  }
}

double joined(const double* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

template <class T, class Power>
void add_blocks(ExactSum& sum, const T* elements, int64_t count, Power power) {
  int64_t at = 0;
  for (; at + kSumBlock <= count; at += kSumBlock) {
    double lanes[kLanes] = {};
    for (int64_t i = 0; i < kSumBlock; i += kLanes)
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += power(static_cast<double>(elements[at + i + lane]));
    sum.add(joined(lanes));
  }
  if (at == count) return;
  double lanes[kLanes] = {};
  for (int64_t i = at; i < count; ++i) lanes[(i - at) % kLanes] += power(static_cast<double>(elements[i]));
  sum.add(joined(lanes));
}

}  // namespace

void ExactSum::add(double term) {
  const auto bits = std::bit_cast<uint64_t>(term);
  const auto exponent = static_cast<int64_t>(bits >> 52 & 0x7ff);
  if (exponent == 0x7ff) {
    ++words_[kDigits + (std::isnan(term) ? 1 : 0)];
    return;
  }
  const auto mantissa = (bits & ((uint64_t{1} << 52) - 1)) | (exponent > 0 ? uint64_t{1} << 52 : 0);
  const auto place = std::max<int64_t>(exponent, 1) - 1;
  const auto first = static_cast<size_t>(place / 32);
  const auto low = (mantissa & kDigit) << place % 32, high = (mantissa >> 32) << place % 32;
  words_[first] += static_cast<int64_t>(low & kDigit);
  words_[first + 1] += static_cast<int64_t>((low >> 32) + (high & kDigit));
  words_[first + 2] += static_cast<int64_t>(high >> 32);
}

void ExactSum::add(const Words& words) {
  for (size_t i = 0; i < words.size(); ++i) words_[i] += words[i];
  carry(words_);
}

ExactSum::Words ExactSum::words() const {
  auto words = words_;
  carry(words);
  return words;
}

double ExactSum::value(Words words) {
  if (words[kDigits + 1] > 0) return std::numeric_limits<double>::quiet_NaN();
  if (words[kDigits] > 0) return std::numeric_limits<double>::infinity();
  carry(words);
  double sum = 0;
  for (size_t i = 0; i < kDigits; ++i)
    sum += std::ldexp(static_cast<double>(words[i]), static_cast<int>(i) * 32 + kLowestExponent);
  return sum;
}

template <class T>
void add_powers(ExactSum& sum, const T* elements, int64_t count, double p) {
  if (p == 2) add_blocks(sum, elements, count, [](double x) { return x * x; });
  else if (p == 1) add_blocks(sum, elements, count, [](double x) { return std::abs(x); });
  else add_blocks(sum, elements, count, [p](double x) { return std::pow(std::abs(x), p); });
}

template void add_powers(ExactSum&, const float*, int64_t, double);
template void add_powers(ExactSum&, const double*, int64_t, double);

}  // namespace muster::optim
