#include "muster/track/progress.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include <gtest/gtest.h>

namespace muster {
namespace {

std::string printed(ProgressOptions options, const std::function<void(Progress&)>& use, int64_t total = 10) {
  char* text = nullptr;
  size_t size = 0;
  options.stream = open_memstream(&text, &size);
  {
    Progress progress("epoch 1/2", total, options);
    use(progress);
  }
  std::fclose(options.stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

std::string printed(ProgressOptions::Style style, int64_t total, int64_t step) {
  const auto steps = [&](Progress& progress) {
    for (int64_t done = 0; done < total; done += step) progress.advance(step, "loss 0.5");
  };
  return printed({.style = style, .unit = "images"}, steps, total);
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

TEST(ProgressLine, WithoutATotalCountsUnits) {
  EXPECT_EQ(progress_line("read", 50, -1, 2.0, "batches", "loss 1", 80), "read 50 batches  loss 1  25 batches/s  0:02");
  EXPECT_EQ(progress_line("", 50, -1, 2.0, "batches", "", 80), "50 batches  25 batches/s  0:02");
}

TEST(ProgressLine, TheRateLeavesOutWhatWasDoneBefore) {
  const auto line = progress_line("train", 150, 200, 2.0, "steps", "", 80, 100);
  EXPECT_NE(line.find(" 75%  25 steps/s  0:02 left"), std::string::npos) << line;
}

TEST(Progress, ShowsMetricsUntilTheyAreSetAgain) {
  const auto text = printed({.lines = 2, .style = ProgressOptions::Style::lines}, [](Progress& progress) {
    progress.set("loss", 0.123456);
    progress.set("phase", "warm");
    progress.advance(5);
    progress.set("loss", 2);
    progress.advance(5);
  });
  EXPECT_NE(text.find("  loss 0.1235  phase warm"), std::string::npos) << text;
  EXPECT_NE(text.find("100%  loss 2  phase warm"), std::string::npos) << text;
}

TEST(Progress, WithoutATotalPrintsFewerAndFewerLines) {
  const auto text = printed(
      {.style = ProgressOptions::Style::lines},
      [](Progress& progress) {
        for (int i = 0; i < 100; ++i) progress.advance(1);
      },
      -1);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 8) << text;  // 1, 2, 4 ... 64, and the end
}

TEST(Progress, SkippedUnitsCountAsDone) {
  const auto text = printed({.lines = 1, .style = ProgressOptions::Style::lines}, [](Progress& progress) {
    progress.skip(9);
    progress.advance(1);
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(text.find("100%"), std::string::npos) << text;
}

TEST(Progress, PrintsNothingWhenQuiet) {
  EXPECT_EQ(printed({.quiet = true, .style = ProgressOptions::Style::live}, [](Progress& p) { p.advance(10); }), "");
}

}  // namespace
}  // namespace muster
