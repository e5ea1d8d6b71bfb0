#include "muster/track/logged_value.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "run_files.h"

namespace muster {
namespace {

using testing::thrown_id;

TEST(LoggedValue, TakesNumbersBoolsAndTexts) {
  EXPECT_EQ(std::get<double>(LoggedValue("a", 0.5f).data), 0.5);
  EXPECT_EQ(std::get<int64_t>(LoggedValue("a", std::size_t{3}).data), 3);
  EXPECT_EQ(std::get<int64_t>(LoggedValue("a", -3).data), -3);
  EXPECT_TRUE(std::get<bool>(LoggedValue("a", true).data));
  EXPECT_EQ(std::get<std::string_view>(LoggedValue("a", "text").data), "text");
  const std::string text = "other";
  EXPECT_EQ(std::get<std::string_view>(LoggedValue("a", text).data), "other");
}

/// As much of a tensor as is asked for.
struct Numbers {
  int64_t count;
  mutable int reads = 0;
  int64_t numel() const { return count; }
  template <class T>
  T item() const {
    return static_cast<T>(++reads + 0.5);
  }
};

TEST(LoggedValue, ReadsATensorOnlyWhenAsked) {
  const Numbers one{1}, two{2};
  const LoggedValue value("loss", one);
  EXPECT_TRUE(value.is_tensor());
  EXPECT_EQ(one.reads, 0);
  EXPECT_EQ(std::get<double>(value.read().data), 1.5);
  EXPECT_FALSE(value.read().is_tensor());
  EXPECT_EQ(std::get<int64_t>(LoggedValue("a", 3).read().data), 3);
  const auto words = testing::thrown([&] { LoggedValue("loss", two).read(); });
  EXPECT_TRUE(words.starts_with("MU427: the tensor 'loss' has 2 elements")) << words;
}

TEST(Histogram, CountsEveryFiniteValueOnce) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values{-1, 0, 0.5, 1, 3, infinity, std::nan("")};
  const auto of = make_histogram(values, 4);
  EXPECT_EQ(of.count, 5);
  EXPECT_EQ(of.min, -1);
  EXPECT_EQ(of.max, 3);
  EXPECT_EQ(of.sum, 3.5);
  EXPECT_EQ(of.sum_squares, 11.25);
  EXPECT_EQ(of.limits, (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(of.counts, (std::vector<double>{1, 2, 1, 1}));
}

TEST(Histogram, OfEqualNumbersIsOneBucket) {
  const std::vector<float> values(10, 2.5f);
  const auto of = make_histogram(values);
  EXPECT_EQ(of.limits, std::vector<double>{2.5});
  EXPECT_EQ(of.counts, std::vector<double>{10});
}

TEST(Histogram, OfNothingIsEmpty) {
  EXPECT_EQ(make_histogram(std::span<const double>()).count, 0);
  EXPECT_TRUE(make_histogram(std::span<const double>()).limits.empty());
  EXPECT_EQ(thrown_id([] { make_histogram(std::span<const double>(), 0); }), "MU423");
}

TEST(Histogram, HoldsTheWholeRangeOfDouble) {
  const double highest = std::numeric_limits<double>::max();
  const std::vector<double> values{-highest, 0, highest};
  const auto of = make_histogram(values, 2);
  EXPECT_EQ(of.counts, (std::vector<double>{1, 2}));
  EXPECT_EQ(of.limits, (std::vector<double>{0, highest}));
}

TEST(PngSize, IsReadFromTheHeader) {
  auto bytes = track::png_bytes(200, 3);
  EXPECT_EQ(png_size({bytes}).width, 200);
  EXPECT_EQ(png_size({bytes}).height, 3);
  bytes[1] = 'J';
  EXPECT_EQ(thrown_id([&] { png_size({bytes}); }), "MU423");
  EXPECT_EQ(thrown_id([&] { png_size({}); }), "MU423");
}

}  // namespace
}  // namespace muster
