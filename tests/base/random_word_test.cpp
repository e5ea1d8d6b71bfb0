#include <set>

#include <gtest/gtest.h>

#include "base/text.h"

namespace muster {
namespace {

TEST(RandomWord, HasItsLengthAndItsLettersAndNeverComesTwice) {
  std::set<std::string> words;
  std::set<char> seen;
  for (int i = 0; i < 200; ++i) {
    const auto word = random_word(12);
    EXPECT_EQ(word.size(), 12u);
    EXPECT_EQ(word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789"), std::string::npos) << word;
    words.insert(word);
    seen.insert(word.begin(), word.end());
  }
  EXPECT_EQ(words.size(), 200u);
  EXPECT_EQ(seen.size(), 32u);
}

TEST(RandomWord, HexIsTwoDigitsForEachByte) {
  const auto text = random_hex(32);
  EXPECT_EQ(text.size(), 64u);
  EXPECT_EQ(text.find_first_not_of("0123456789abcdef"), std::string::npos) << text;
  EXPECT_NE(text, random_hex(32));
}

}  // namespace
}  // namespace muster
