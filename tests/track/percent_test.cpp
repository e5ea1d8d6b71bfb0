#include <gtest/gtest.h>

#include "track/mlflow_server.h"

namespace muster::track {
namespace {

TEST(Percent, EncodesAllButPlainCharacters) {
  EXPECT_EQ(percent_encoded("aZ9-._~"), "aZ9-._~");
  EXPECT_EQ(percent_encoded("a b/\xc3\xa9%"), "a%20b%2F%C3%A9%25");
  EXPECT_EQ(percent_encoded("a b/c", true), "a%20b/c");
}

TEST(Percent, DecodesWhatIsEncoded) {
  for (const auto* text : {"", "plain", "p@ss:w/rd %41", "\xc3\xa9\x01"})
    EXPECT_EQ(percent_decoded(percent_encoded(text)), text);
  EXPECT_EQ(percent_decoded("50%"), "50%");
  EXPECT_EQ(percent_decoded("%4"), "%4");
  EXPECT_EQ(percent_decoded("%zz"), "%zz");
}

}  // namespace
}  // namespace muster::track
