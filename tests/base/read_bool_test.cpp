#include <cctype>
#include <string>

#include <gtest/gtest.h>

#include "base/text.h"

namespace muster {
namespace {

TEST(ReadBool, TakesTheWordsOfYamlAndAccelerateInAnyCase) {
  const std::pair<bool, std::vector<std::string>> words[] = {{true, {"true", "yes", "on", "1", "y", "t"}},
                                                             {false, {"false", "no", "off", "0", "n", "f"}}};
  for (const auto& [value, spelled] : words)
    for (const auto& word : spelled) {
      auto capital = word;
      capital[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
      for (const auto& text : {word, capital, upper_case(word)}) EXPECT_EQ(read_bool(text), value) << text;
    }
  for (const auto* other : {"", "2", "none", "tru", " true", "truefalse"}) EXPECT_EQ(read_bool(other), std::nullopt);
}

TEST(ReadBool, WordsSayTheSameIfTheirBooleansDo) {
  EXPECT_TRUE(say_the_same("True", "yes"));
  EXPECT_TRUE(say_the_same("warn", "warn"));
  for (const auto& [one, other] : {std::pair{"true", "no"}, std::pair{"warn", "Warn"}, std::pair{"", "false"}})
    EXPECT_FALSE(say_the_same(one, other)) << one << " and " << other;
}

TEST(ParseNumber, TakesTheWholeText) {
  EXPECT_EQ(parse_number<int>("-12"), -12);
  EXPECT_EQ(parse_number<double>("1e-3"), 1e-3);
  for (const auto* other : {"", " 1", "1 ", "+1", "1x", "99999999999"}) EXPECT_FALSE(parse_number<int>(other)) << other;
}

}  // namespace
}  // namespace muster
