#include "muster/runtime/flops.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster {
namespace {

TEST(Flops, MatrixProductsCountTwoForEachTerm) {
  const auto a = torch::rand({4, 8}), b = torch::rand({8, 16});
  EXPECT_EQ(measure_flops([&] { a.matmul(b); }), 2 * 4 * 8 * 16);
  EXPECT_EQ(measure_flops([&] { torch::addmm(torch::rand(16), a, b); }), 2 * 4 * 8 * 16);
  EXPECT_EQ(measure_flops([&] { torch::bmm(torch::rand({3, 4, 8}), torch::rand({3, 8, 16})); }), 3 * 2 * 4 * 8 * 16);
  EXPECT_EQ(measure_flops([&] { a + a; }), 0);
}

TEST(Flops, ConvolutionsCountWhatTheyMultiply) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 6, 3).stride(2).padding(1).groups(2));
  EXPECT_EQ(measure_flops([&] { conv(torch::rand({2, 4, 8, 8})); }), 2 * 2 * (4 * 4) * 6 * (4 / 2) * 9);
  torch::nn::ConvTranspose1d back(torch::nn::ConvTranspose1dOptions(4, 6, 3));
  EXPECT_EQ(measure_flops([&] { back(torch::rand({2, 4, 8})); }), 2 * 2 * 8 * 4 * 6 * 3);
}

TEST(Flops, ABackwardCountsTwiceTheForward) {
  torch::nn::Linear layer(8, 16);
  const auto x = torch::rand({4, 8}, torch::requires_grad());
  const auto forward = measure_flops([&] { layer(x); });
  EXPECT_EQ(measure_flops([&] { layer(x).sum().backward(); }), 3 * forward);
}

TEST(Flops, MeasuresMayBeNested) {
  const auto a = torch::rand({2, 2});
  int64_t inner = 0;
  EXPECT_EQ(measure_flops([&] {
              a.mm(a);
              inner = measure_flops([&] { a.mm(a); });
            }),
            16);
  EXPECT_EQ(inner, 16);
  EXPECT_EQ(measure_flops([] {}), 0);
}

}  // namespace
}  // namespace muster
