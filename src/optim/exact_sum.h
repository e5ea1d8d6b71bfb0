#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace muster::optim {

/// Elements whose powers are summed with rounding, in one order.
inline constexpr int64_t kSumBlock = 64;

/// A sum of float64 numbers that are not negative, without rounding: the same whatever their order and however they are
/// divided into sums. A fixed-point number as wide as the range of float64, 32 bits to a word (the long accumulator of
/// Kulisch, "Computer Arithmetic and Validity", 2008). Takes 2^31 numbers; words of up to 2^31 sums may be added one by
/// one.
class ExactSum {
 public:
  static constexpr size_t kDigits = 68;
  /// The digits, lowest first, then how many terms were infinite and how many not a number.
  using Words = std::array<int64_t, kDigits + 2>;

  void add(double term);
  /// Adds another sum.
  void add(const Words& words);
  /// Every digit below 2^32.
  Words words() const;
  /// What words that were added one by one stand for, to the last bit but one.
  static double value(Words words);

 private:
  Words words_{};
};

/// Adds |x|^p of these elements, 0 < p < infinity. Each block of kSumBlock of them is summed in float64 in one fixed
/// order, a last one as if filled up with zeros; blocks are added without rounding.
template <class T>
void add_powers(ExactSum& sum, const T* elements, int64_t count, double p);

extern template void add_powers(ExactSum&, const float*, int64_t, double);
extern template void add_powers(ExactSum&, const double*, int64_t, double);

}  // namespace muster::optim
