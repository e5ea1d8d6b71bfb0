#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/text.h"

namespace muster {
namespace {

TEST(Listing, JoinsWordsAndNumbers) {
  EXPECT_EQ(joined(std::vector<std::string>{"a", "b", "c"}), "a, b, c");
  EXPECT_EQ(joined(std::vector<int>{3, 1}), "3, 1");
  EXPECT_EQ(joined(std::vector<std::string>{"", ""}), ", ");
  EXPECT_EQ(joined(std::vector<int>{}), "");
  const std::map<std::string, int> ages{{"Ada", 36}, {"Bob", 7}};
  EXPECT_EQ(joined(ages, [](const auto& entry) { return entry.first; }), "Ada, Bob");
  EXPECT_EQ(joined(ages, &std::pair<const std::string, int>::second), "36, 7");
}

TEST(Listing, TakesAnySeparator) {
  EXPECT_EQ(joined_by(" x ", std::vector<int>{3, 1}), "3 x 1");
  EXPECT_EQ(joined_by(",", std::vector<std::string>{"", "a"}), ",a");
}

TEST(Listing, SplitsTextAtMarks) {
  EXPECT_EQ(split_text("a\n\nb\n", '\n'), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split_text("a.b", '.'), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(split_text(":", ':'), std::vector<std::string>{""});
  EXPECT_TRUE(split_text("", ',').empty());
}

TEST(Listing, CutsLongLists) {
  const std::vector<std::string> words{"one", "two", "three", "four"};
  EXPECT_EQ(joined(words, {}, 9), "one, two, ...");
  EXPECT_EQ(joined(words, {}, 100), "one, two, three, four");
}

TEST(Listing, SaysThatThereIsNone) {
  EXPECT_EQ(listed(std::vector<std::string>{}), "none");
  EXPECT_EQ(listed(std::vector<std::string>{"a"}), "a");
}

TEST(Listing, EndsAMessageAboutAnUnknownName) {
  EXPECT_EQ(known_ones(std::vector<std::string>{"ddp", "fsdp"}), "; the known ones are ddp, fsdp");
  EXPECT_EQ(known_ones(std::vector<std::string>{}), "; the known ones are none");
}

TEST(Listing, Shapes) {
  EXPECT_EQ(shape_text(std::vector<long>{2, 3}), "[2, 3]");
  EXPECT_EQ(shape_text(std::vector<long>{}), "[]");
}

}  // namespace
}  // namespace muster
