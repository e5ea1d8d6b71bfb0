#include "optim/exact_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace muster::optim {
namespace {

double sum_of(const std::vector<double>& terms) {
  ExactSum sum;
  for (const double term : terms) sum.add(term);
  return ExactSum::value(sum.words());
}

TEST(ExactSum, KeepsWhatRoundingLoses) {
  EXPECT_EQ(sum_of({}), 0.0);
  EXPECT_EQ(sum_of({0.1}), 0.1);
  EXPECT_EQ(sum_of({1.0, std::ldexp(1.0, -53), std::ldexp(1.0, -53)}), 1.0 + std::ldexp(1.0, -52));
  const std::vector<double> wide = {1e300, 1.0, 1e-300, 1e16, 1.0};
  EXPECT_EQ(sum_of(wide), 1e300);
  const double least = std::numeric_limits<double>::denorm_min(), most = std::numeric_limits<double>::max();
  EXPECT_EQ(sum_of({least, least, least}), 3 * least);
  EXPECT_EQ(sum_of({most}), most);
  EXPECT_EQ(sum_of({most, most}), std::numeric_limits<double>::infinity());
}

TEST(ExactSum, HasOneResultForAnyOrderAndDivision) {
  std::mt19937_64 random(3);
  std::vector<double> terms;
  for (int i = 0; i < 2000; ++i)
    terms.push_back(
        std::ldexp(1.0 + static_cast<double>(random() >> 12) * 0x1p-52, static_cast<int>(random() % 200) - 100));
  const double whole = sum_of(terms);
  long double wanted = 0;
  std::sort(terms.begin(), terms.end());
  for (const double term : terms) wanted += term;
  EXPECT_NEAR(whole / static_cast<double>(wanted), 1.0, 1e-15);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(terms.begin(), terms.end(), random);
    EXPECT_EQ(sum_of(terms), whole);
    ExactSum parts[3];
    for (size_t i = 0; i < terms.size(); ++i) parts[i % 3].add(terms[i]);
    auto words = parts[0].words();
    for (size_t i = 0; i < words.size(); ++i) words[i] += parts[1].words()[i] + parts[2].words()[i];
    EXPECT_EQ(ExactSum::value(words), whole);
  }
}

TEST(ExactSum, CarriesOverManyTerms) {
  ExactSum sum;
  const double term = 1.0 - 0x1p-53;
  for (int i = 0; i < 100000; ++i) sum.add(term);
  EXPECT_EQ(ExactSum::value(sum.words()), 100000 * term);
}

TEST(ExactSum, ShowsWhatIsNotFinite) {
  EXPECT_TRUE(std::isinf(sum_of({1.0, INFINITY})));
  EXPECT_TRUE(std::isnan(sum_of({NAN, INFINITY, 1.0})));
}

TEST(AddPowers, SumsBlocksInOneOrder) {
  std::vector<float> elements(150);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = std::sin(static_cast<float>(i)) * 3;
  for (const double p : {0.5, 1.0, 2.0, 3.0}) {
    ExactSum sum;
    add_powers(sum, elements.data(), 150, p);
    long double wanted = 0;
    for (const float x : elements)
      wanted += std::pow(std::abs(static_cast<long double>(x)), static_cast<long double>(p));
    EXPECT_NEAR(ExactSum::value(sum.words()) / static_cast<double>(wanted), 1.0, 1e-15);
    ExactSum filled;
    elements.resize(192);
    add_powers(filled, elements.data(), 192, p);
    EXPECT_EQ(filled.words(), sum.words());
    elements.resize(150);
  }
}

}  // namespace
}  // namespace muster::optim
