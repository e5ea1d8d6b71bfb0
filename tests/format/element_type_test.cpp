#include <gtest/gtest.h>

#include "format/safetensors.h"

namespace muster::format {
namespace {

TEST(ElementType, NamesGoBothWays) {
  for (int i = 0; i <= static_cast<int>(ElementType::u64); ++i) {
    const auto type = static_cast<ElementType>(i);
    EXPECT_EQ(element_type(name_of(type)), type);
    EXPECT_NE(known_element_types().find(name_of(type)), std::string::npos);
  }
  EXPECT_FALSE(element_type("f32"));
  EXPECT_FALSE(element_type(""));
}

TEST(ElementType, CountsBytes) {
  EXPECT_EQ(byte_count(ElementType::f32, std::vector<std::int64_t>{2, 3}), 24u);
  EXPECT_EQ(byte_count(ElementType::c64, std::vector<std::int64_t>{}), 8u);
  EXPECT_EQ(byte_count(ElementType::boolean, std::vector<std::int64_t>{7, 0}), 0u);
  EXPECT_EQ(byte_count(ElementType::f6_e2m3, std::vector<std::int64_t>{4}), 3u);
  EXPECT_EQ(byte_count(ElementType::f4, std::vector<std::int64_t>{3}), std::nullopt);
  EXPECT_EQ(byte_count(ElementType::u8, std::vector<std::int64_t>{-1}), std::nullopt);
  EXPECT_EQ(byte_count(ElementType::u8, std::vector<std::int64_t>{std::int64_t{1} << 60}), std::nullopt);
  EXPECT_EQ(byte_count(ElementType::u8, std::vector<std::int64_t>{0, std::int64_t{1} << 40, std::int64_t{1} << 40}),
            std::nullopt);
}

}  // namespace
}  // namespace muster::format
