#include <gtest/gtest.h>

#include "base/text.h"

namespace muster {
namespace {

using namespace std::string_literals;

TEST(Shown, LeavesOrdinaryNamesAsTheyAre) {
  for (const char* name : {"", "layers.0.weight", "a b/c'd\"", "Größe", "重み", "🜂"}) EXPECT_EQ(shown(name), name);
  EXPECT_EQ(in_quotes("w"), "'w'");
}

TEST(Shown, EscapesWhatSteersATerminal) {
  EXPECT_EQ(shown("\x1b[2J\a\r\n\t"), "\\x1b[2J\\x07\\x0d\\n\\t");
  EXPECT_EQ(shown("a\0b"s), "a\\x00b");
  EXPECT_EQ(shown("\x7f"), "\\x7f");
  EXPECT_EQ(shown("\u009b31m"), "\\u{9b}31m") << "the control sequence introducer in one character";
  EXPECT_EQ(shown("\u202etxt.exe"), "\\u{202e}txt.exe");
  EXPECT_EQ(shown("a\u200bb\u2028\ufeff\u2066\U000e0041"), "a\\u{200b}b\\u{2028}\\u{feff}\\u{2066}\\u{e0041}");
  EXPECT_EQ(shown("\\x1b"), "\\\\x1b") << "nothing passes for an escape";
}

TEST(Shown, EscapesBytesThatAreNoText) {
  EXPECT_EQ(shown("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(shown("\xc0\x9b"), "\\xc0\\x9b") << "too long a form";
  EXPECT_EQ(shown("\xe0\x80\x9b"), "\\xe0\\x80\\x9b");
  EXPECT_EQ(shown("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(shown("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond the last character";
  EXPECT_EQ(shown("\x9b"), "\\x9b");
}

TEST(Shown, CutsAtAWholeCharacter) {
  EXPECT_EQ(shown(std::string(1'000'000, 'a')), std::string(kMostShown, 'a') + "...");
  EXPECT_EQ(shown("abc", 3), "abc");
  EXPECT_EQ(shown("abcd", 3), "abc...");
  EXPECT_EQ(shown("aöö", 4), "aö...");
  EXPECT_EQ(shown("a\x1b[", 4), "a...");
  EXPECT_EQ(in_quotes(std::string(9, 'a'), 4), "'aaaa...'");
}

}  // namespace
}  // namespace muster
