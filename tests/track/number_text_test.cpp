#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "track/record.h"

namespace muster::track {
namespace {

TEST(NumberText, IsTheShortestThatReadsBack) {
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(1e-5), "1e-05");
  EXPECT_EQ(number_text(2.0), "2");
  EXPECT_EQ(std::stod(number_text(1.0 / 3)), 1.0 / 3);
  EXPECT_EQ(number_text(-std::numeric_limits<double>::max()), "-1.7976931348623157e+308");
  EXPECT_EQ(number_text(-std::nan("")), "nan");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(number_text(int64_t{1} << 62), "4611686018427387904");
}

}  // namespace
}  // namespace muster::track
