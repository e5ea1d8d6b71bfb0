#include "runtime/main_output.h"

#include <iomanip>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "runtime/ranks.h"

namespace muster::runtime {
namespace {

TEST(MainOutput, PrintsLinesWhenTheyEnd) {
  std::vector<std::string> printed;
  MainOutput out([] { return true; }, [&](const std::string& lines) { printed.push_back(lines); });
  out << "epoch " << 3;
  EXPECT_TRUE(printed.empty());
  out << ": " << std::fixed << std::setprecision(2) << 0.5 << "\nsecond\nthi";
  EXPECT_EQ(printed, (std::vector<std::string>{"epoch 3: 0.50\nsecond"}));
  out.put('r') << "d\n";
  EXPECT_EQ(printed.back(), "third");
}

TEST(MainOutput, PrintsTheBeginningOfALineWhenFlushed) {
  ::testing::internal::CaptureStdout();
  {
    MainOutput out([] { return true; }, [](const std::string&) { FAIL(); });
    out << "half" << std::flush << " and rest";
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "half and rest");
}

TEST(MainOutput, DropsEverythingElsewhere) {
  ::testing::internal::CaptureStdout();
  {
    MainOutput out([] { return false; }, [](const std::string&) { FAIL(); });
    out << "line" << std::endl << "rest";
    EXPECT_TRUE(out.good());
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

void write_table(std::ostream& out) { out << "a " << torch::tensor({1, 2}).sum().item<int>() << '\n'; }

TEST(MainOutput, IsTheStreamOfAccelerateAndFabricOnTheMainRank) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    Fabric fabric;
    ::testing::internal::CaptureStdout();
    accelerator.print("first");
    write_table(accelerator.out());
    fabric.out() << "last" << std::endl;
    const auto text = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(text, accelerator.is_main_process() ? "first\na 3\nlast\n" : "");
    EXPECT_EQ(&accelerator.out(), &accelerator.out());
  });
}

}  // namespace
}  // namespace muster::runtime
