#include <gtest/gtest.h>

#include "base/text.h"

namespace muster {
namespace {

TEST(Quantities, SizesHaveTheUnitThatFits) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1024), "1.0 KiB");
  EXPECT_EQ(size_text(8448), "8.2 KiB");
  EXPECT_EQ(size_text(3u << 20), "3.0 MiB");
  EXPECT_EQ(size_text(std::uint64_t{5} << 50), "5120.0 TiB");
}

TEST(Quantities, Seconds) {
  EXPECT_EQ(seconds_text(std::chrono::milliseconds(1460)), "1.5 s");
  EXPECT_EQ(seconds_text(std::chrono::seconds(120)), "120.0 s");
}

TEST(Quantities, OneHasNoPlural) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(2, "rank"), "2 ranks");
}

}  // namespace
}  // namespace muster
