#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace muster::optim {

/// Number of elements in a block, whose powers are summed with rounding, in one fixed order.
inline constexpr int64_t kSumBlock = 64;

/// A sum of non-negative float64 numbers without rounding: the result does not depend on their order, nor on how they
/// are split into partial sums. It is a fixed-point number as wide as the range of float64, 32 bits to a word (the long
/// accumulator of Kulisch, "Computer Arithmetic and Validity", 2008). Takes 2^31 numbers; the words of up to 2^31 sums
/// may be added one by one.
/// Why: docs/decisions/0071-norms-are-summed-without-rounding.md.
class ExactSum {
 public:
  static constexpr size_t kDigits = 68;
  /// The digits, lowest first, then the number of infinite terms and the number of NaN terms.
  using Words = std::array<int64_t, kDigits + 2>;

  void add(double term);
  /// Adds another sum.
  void add(const Words& words);
  /// The words of the sum, with every digit below 2^32.
  Words words() const;
  /// The value of words that were added one by one, accurate to the last bit but one.
  static double value(Words words);

 private:
  Words words_{};
};

/// Adds |x|^p of these elements, 0 < p < infinity. Each block of kSumBlock elements is summed in float64 in one fixed
/// order, an incomplete last block as if padded with zeros. Blocks are added without rounding.
template <class T>
void add_powers(ExactSum& sum, const T* elements, int64_t count, double p);

extern template void add_powers(ExactSum&, const float*, int64_t, double);
extern template void add_powers(ExactSum&, const double*, int64_t, double);

}  // namespace muster::optim
