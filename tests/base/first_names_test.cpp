#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/text.h"

namespace muster {
namespace {

TEST(FirstNames, AreAllOfAShortList) {
  EXPECT_EQ(first_names(std::vector<std::string>{}), "");
  EXPECT_EQ(first_names(std::vector<std::string>{"a", "b"}), "a, b");
  EXPECT_EQ(first_names(std::vector<std::string>{"a", "b"}, quoted), "'a', 'b'");
  EXPECT_EQ(first_names(std::vector<int>{1, 2}, [](int number) { return std::to_string(number); }), "1, 2");
}

TEST(FirstNames, OfALongListAreCounted) {
  std::vector<std::string> names(kNamesShown, "x");
  EXPECT_EQ(first_names(names).find("more"), std::string::npos);
  names.resize(kNamesShown + 3, "y");
  EXPECT_TRUE(first_names(names).ends_with("x, x and 3 more")) << first_names(names);
}

}  // namespace
}  // namespace muster
