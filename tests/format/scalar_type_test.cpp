#include <gtest/gtest.h>

#include "format/safetensors.h"

namespace muster::format {
namespace {

TEST(ScalarTypeTest, NamesAndAliasesAreFound) {
  EXPECT_EQ(find_scalar_type("float32")->type, ScalarType::float32);
  EXPECT_EQ(find_scalar_type("float"), find_scalar_type("float32"));
  EXPECT_EQ(find_storage_type("LongStorage")->type, ScalarType::int64);
  EXPECT_EQ(find_storage_type(""), nullptr);
  EXPECT_EQ(find_scalar_type("qint8"), nullptr);
  EXPECT_EQ(find_scalar_type(static_cast<ScalarType>(12)), nullptr);
  EXPECT_EQ(dtype_info(ScalarType::boolean).bytes, 1u);
}

TEST(ScalarTypeTest, WidthsAgreeWithSafetensors) {
  for (int number = 0; number < 64; ++number)
    if (const auto* row = find_scalar_type(static_cast<ScalarType>(number)); row && row->element) {
      const unsigned elements = *row->element == ElementType::f4 ? 2 : 1;
      EXPECT_EQ(row->bytes * 8, bits_of(*row->element) * elements) << row->name;
      EXPECT_EQ(find_scalar_type(*row->element), row);
    }
}

}  // namespace
}  // namespace muster::format
