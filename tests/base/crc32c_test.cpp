#include <string>

#include <gtest/gtest.h>

#include "base/crc.h"

namespace muster {
namespace {

// Source: RFC 3720, appendix B.4.
TEST(Crc32c, HasTheValuesOfTheStandard) {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(crc32c(falling), 0x113fdb5cu);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);  // no multiple of eight
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(Crc32c, IsMaskedAsTensorFlowDoes) {
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8u);
  EXPECT_EQ(masked_crc32c("123456789"), (0xe3069283u >> 15 | 0xe3069283u << 17) + 0xa282ead8u);
}

}  // namespace
}  // namespace muster
