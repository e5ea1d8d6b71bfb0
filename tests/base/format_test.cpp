#include "muster/base/format.h"

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster {
namespace {

TEST(Format, PutsValuesInTheirPlaces) {
  EXPECT_EQ(formatted("epoch {}: {:.2f}% of {:>5}", 3, 97.126, "all"), "epoch 3: 97.13% of   all");
  EXPECT_EQ(formatted("{} {} {}", true, std::string("x"), 7u), "true x 7");
}

TEST(Format, RefusesATextThatDoesNotFit) {
  try {
    formatted("{} and {}", 1);
    FAIL() << "one value served two places";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.id(), "MU003");
    EXPECT_NE(std::string(error.what()).find("{} and {}"), std::string::npos);
  }
  EXPECT_THROW(formatted("{:d}", "text"), ConfigError);
}

}  // namespace
}  // namespace muster
