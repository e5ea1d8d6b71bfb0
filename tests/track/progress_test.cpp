#include "muster/track/progress.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

namespace muster {
namespace {

std::string printed(ProgressOptions::Style style, int64_t total, int64_t step) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  {
    Progress progress("epoch 1/2", total, {.unit = "images", .stream = stream, .style = style});
    for (int64_t done = 0; done < total; done += step) progress.advance(step, "loss 0.5");
  }
  std::fclose(stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(ProgressLine, ShowsShareRateAndTimeLeft) {
  const auto line = progress_line("train", 50, 200, 2.0, "images", "loss 0.25", 80);
  EXPECT_NE(line.find(" 25%  loss 0.25  25 images/s  0:06 left"), std::string::npos) << line;
  EXPECT_LE(line.size(), 80u);
}

TEST(ProgressLine, DropsTheBarWhereThereIsNoRoom) {
  EXPECT_EQ(progress_line("train", 200, 200, 100.0, "steps", "", 20), "train 100%  2.00 steps/s  1:40");
}

TEST(Progress, PrintsAFewPlainLinesWhereNobodyWatches) {
  const auto text = printed(ProgressOptions::Style::lines, 100, 1);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_NE(text.find("100%"), std::string::npos);
}

TEST(Progress, RedrawsOneLineWhenLive) {
  const auto text = printed(ProgressOptions::Style::live, 100, 100);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_EQ(text.front(), '\r');
}

}  // namespace
}  // namespace muster
