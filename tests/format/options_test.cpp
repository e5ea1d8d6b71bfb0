#include "muster/format/options.h"

#include <gtest/gtest.h>

#include "checks.h"

namespace muster {
namespace {

TEST(ByteSize, UnderstandsWords) {
  EXPECT_EQ(ByteSize("10GB").bytes(), 10'000'000'000u);
  EXPECT_EQ(ByteSize("5GiB").bytes(), 5368709120u);
  EXPECT_EQ(ByteSize("512MiB").bytes(), 536870912u);
  EXPECT_EQ(ByteSize("1KIB").bytes(), 1024u);
  EXPECT_EQ(ByteSize("8Gb").bytes(), 1'000'000'000u);
  EXPECT_EQ(ByteSize("1.5 MB").bytes(), 1'500'000u);
  EXPECT_EQ(ByteSize("2TB").bytes(), 2'000'000'000'000u);
  EXPECT_EQ(ByteSize("12").bytes(), 12u);
  EXPECT_EQ(ByteSize("12B").bytes(), 12u);
  EXPECT_EQ(ByteSize(77).bytes(), 77u);
}

TEST(ByteSize, RefusesOtherWords) {
  for (const char* words :
       {"", "GB", "-1GB", "ten", "1XB", "1G", "1GBB", "nan", "inf", "1e3GB", "99999999999TB", "1 GB x"})
    checks::expect_error<ConfigError>("MU206", "such as \"10GB\"", [&] { ByteSize size(words); });
}

}  // namespace
}  // namespace muster
