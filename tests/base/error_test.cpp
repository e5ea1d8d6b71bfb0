#include "muster/base/error.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Error, CarriesItsId) {
  ConfigError error("MU002", "a word where a number is wanted");
  EXPECT_EQ(error.id(), "MU002");
  EXPECT_STREQ(error.what(), "MU002: a word where a number is wanted");
  const Error& base = error;
  EXPECT_EQ(base.id(), "MU002");
}

}  // namespace
}  // namespace muster
