#include "base/fnv.h"

#include <array>
#include <string_view>

#include <gtest/gtest.h>

namespace muster {
namespace {

uint64_t of(std::string_view text) { return Fnv1a().add_all(text).value(); }

// Known values: draft-eastlake-fnv, appendix C.
TEST(Fnv1a, TextsHaveTheirKnownValues) {
  EXPECT_EQ(of(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(of("a"), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(of("foobar"), 0x85944171f73967e8ULL);
}

TEST(Fnv1a, WordsKeepAllTheirBits) {
  const auto shape = [](int64_t size) { return Fnv1a().add_all(std::array<int64_t, 2>{size, 3}).value(); };
  EXPECT_NE(shape(1), shape(1 + (int64_t{1} << 40)));
  EXPECT_NE(Fnv1a().add(int64_t{-1}).value(), Fnv1a().add(char{-1}).value());
  EXPECT_NE(Fnv1a(1).add('a').value(), Fnv1a(2).add('a').value());
}

}  // namespace
}  // namespace muster
