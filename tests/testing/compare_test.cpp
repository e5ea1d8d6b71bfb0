#include "muster/testing/compare.h"

#include <limits>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace muster::testing {
namespace {

TEST(Compare, BitsNameTheFirstDifference) {
  at::Tensor a = at::zeros({2, 3}), b = a.clone();
  EXPECT_EQ(difference_in_bits(a, b), "");
  b[1][2] = 1e-30;
  b[1][0] = -0.0;
  EXPECT_EQ(difference_in_bits(a, b), "2 of 6 elements differ, first at [1, 0]: got 0, expected -0");
  EXPECT_EQ(difference_in_bits(a, a.to(at::kDouble)), "got Float [2, 3], expected Double [2, 3]");
  EXPECT_NE(difference_in_bits(a, a.view({3, 2})), "");
  EXPECT_NE(difference_in_bits(a, at::Tensor()), "");
  EXPECT_EQ(difference_in_bits(a.t(), at::zeros({3, 2})), "") << "strides do not matter";
  at::Tensor nan = at::full({1}, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(difference_in_bits(nan, nan.clone()), "");
}

TEST(Compare, TolerancesHold) {
  at::Tensor a = at::tensor({1.0, 100.0, 0.0}), b = at::tensor({1.0, 100.5, 0.001});
  EXPECT_EQ(difference(a, b, 0.01, 0.002), "");
  EXPECT_NE(difference(a, b, 0.01, 0.0001).find("1 of 3 elements differ, first at [2]"), std::string::npos);
  EXPECT_NE(difference(a, b, 0.001, 0.002).find("first at [1]: got 100, expected 100.5; the largest difference is 0.5"),
            std::string::npos)
      << difference(a, b, 0.001, 0.002);
}

}  // namespace
}  // namespace muster::testing
