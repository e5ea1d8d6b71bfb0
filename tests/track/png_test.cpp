#include "track/png.h"

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"

namespace muster {
namespace {

TEST(Png, AnImageIsWhatTheSpecificationSays) {
  const std::vector<uint8_t> pixel = {255};
  // As Python's zlib and struct make it, its data in one stored block.
  const std::vector<uint8_t> wanted = {
      0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52, 0x00, 0x00,
      0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0x3a, 0x7e, 0x9b, 0x55, 0x00, 0x00, 0x00,
      0x0d, 0x49, 0x44, 0x41, 0x54, 0x78, 0x01, 0x01, 0x02, 0x00, 0xfd, 0xff, 0x00, 0xff, 0x01, 0x01, 0x01, 0x00,
      0x60, 0x87, 0x12, 0xb5, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};
  EXPECT_EQ(encode_png(pixel, {.height = 1, .width = 1}, 1), wanted);
}

TEST(Png, ItsHeaderHasTheSize) {
  const std::vector<uint8_t> pixels(300 * 200 * 3, 7);  // several blocks
  const auto bytes = encode_png(pixels, {.height = 200, .width = 300}, 3);
  const auto size = png_size({bytes});
  EXPECT_EQ(size.height, 200);
  EXPECT_EQ(size.width, 300);
  EXPECT_GT(bytes.size(), pixels.size());
}

TEST(Png, OtherFormsAreRefused) {  // MU455
  const std::vector<uint8_t> pixels(12);
  EXPECT_EQ(testing::thrown_id([&] { encode_png(pixels, {.height = 2, .width = 3}, 2); }), "MU455");
  EXPECT_EQ(testing::thrown_id([&] { encode_png(pixels, {.height = 2, .width = 3}, 1); }), "MU455");
  EXPECT_EQ(testing::thrown_id([&] { encode_png({}, {.height = 0, .width = 3}, 1); }), "MU455");
}

}  // namespace
}  // namespace muster
