#include "track/record.h"

#include <gtest/gtest.h>

#include "run_files.h"

namespace muster::track {
namespace {

TEST(Record, ReadsBackWhatWasEncoded) {
  const auto png = png_bytes(2, 3);
  const std::vector<double> numbers{1, 2, 4};
  const auto histogram = make_histogram(numbers, 3);
  const std::vector<LoggedValue> values{{"a", 0.5},           {"b", -3},        {"c", true}, {"d", "text"},
                                        {"e", PngImage{png}}, {"f", histogram}, {"", ""}};
  std::string bytes;
  encode({.kind = Record::Kind::hyperparams, .only = 2, .step = 7, .time = 1.5, .values = {}}, values, bytes);
  encode({.values = {}}, {}, bytes);
  RecordReader reader(bytes);
  const auto& first = reader.next();
  EXPECT_EQ(first.kind, Record::Kind::hyperparams);
  EXPECT_EQ(first.only, 2);
  EXPECT_EQ(first.step, 7);
  EXPECT_EQ(first.time, 1.5);
  ASSERT_EQ(first.values.size(), 7u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(first.values[i].name, values[i].name);
    EXPECT_EQ(first.values[i].data.index(), i);
  }
  EXPECT_EQ(std::get<0>(first.values[0].data), 0.5);
  EXPECT_EQ(std::get<1>(first.values[1].data), -3);
  EXPECT_TRUE(std::get<2>(first.values[2].data));
  EXPECT_EQ(std::get<3>(first.values[3].data), "text");
  const auto image = std::get<PngImage>(first.values[4].data).bytes;
  EXPECT_EQ(std::vector<uint8_t>(image.begin(), image.end()), png);
  const auto& read = *std::get<const Histogram*>(first.values[5].data);
  EXPECT_EQ(read.counts, histogram.counts);
  EXPECT_EQ(read.limits, histogram.limits);
  EXPECT_EQ(read.count, 3);
  EXPECT_EQ(read.max, 4);
  EXPECT_EQ(read.min, 1);
  EXPECT_EQ(read.sum, 7);
  EXPECT_EQ(read.sum_squares, 21);
  EXPECT_EQ(std::get<3>(first.values[6].data), "");
  EXPECT_TRUE(reader.next().values.empty());
  EXPECT_TRUE(reader.done());
}

TEST(WholeRecords, EndBeforeOneThatIsCutOff) {
  const std::vector<LoggedValue> values{{"a", 0.5}};
  std::string one, two;
  encode({.values = {}}, values, one);
  two = one + one;
  EXPECT_EQ(whole_records(two), two.size());
  for (std::size_t cut = 1; cut <= one.size(); ++cut)
    EXPECT_EQ(whole_records(std::string_view(two).substr(0, two.size() - cut)), one.size()) << cut;
  EXPECT_EQ(whole_records(std::string_view(one).substr(0, 5)), 0u);
}

}  // namespace
}  // namespace muster::track
