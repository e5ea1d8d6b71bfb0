#include <gtest/gtest.h>

#include "base/options_text.h"
#include "muster/base/error.h"
#include "muster/testing/thrown.h"

namespace muster::options {
namespace {

using muster::testing::thrown_id;
using Words = std::map<std::string, std::string>;

Words words_of(const RawOptions& texts) {
  Words words;
  for (const auto& [name, found] : texts) words[name] = found.text;
  return words;
}

TEST(OptionsLine, IsPairsOrYamlOrJson) {
  const Words wanted{{"fsdp.stage", "full"}, {"fsdp.unit_classes", "Block,Head"}, {"precision", "bf16"}};
  for (const char* line : {"precision=bf16,fsdp.unit_classes=Block,Head,fsdp.stage=full",
                           "{precision: bf16, fsdp: {stage: full, unit_classes: [Block, Head]}}",
                           R"({"precision":"bf16","fsdp":{"stage":"full","unit_classes":["Block","Head"]}})",
                           R"({"fsdp.stage":"full","fsdp.unit_classes":"Block,Head","precision":"bf16"})"})
    EXPECT_EQ(words_of(read_line(line)), wanted) << line;
  EXPECT_TRUE(read_line("").empty());
  EXPECT_TRUE(read_line("{}").empty());
  EXPECT_EQ(read_line("a=1").at("a").place, "a of the variable MUSTER_OPTIONS");
}

TEST(OptionsLine, ComesBackWhateverTheTexts) {
  RawOptions texts;
  for (const char* odd : {"", "a,b=c", "\"quoted\\\"", "{x: 1}", "two\nlines", "\xc3\xa4", "# no comment", "true"})
    texts["name" + std::to_string(texts.size())].text = odd;
  EXPECT_EQ(words_of(read_line(write_line(texts))), words_of(texts));
  EXPECT_EQ(write_line({}), "");
}

TEST(OptionsLine, CarriesThePlaces) {
  const RawOptions texts{
      {"fsdp.stage", {"full", "run.yaml line 3"}}, {"precision", {"bf16", "flag --precision"}}, {"x", {}}};
  const auto back = read_line(write_line(texts));
  EXPECT_EQ(words_of(back), words_of(texts));
  EXPECT_EQ(back.at("precision").place, "flag --precision");
  EXPECT_EQ(back.at("fsdp.stage").place, "run.yaml line 3");
  EXPECT_EQ(back.at("x").place, "x of the variable MUSTER_OPTIONS");
  EXPECT_EQ(thrown_id([] { write_line({{"name", {"\xff", "flag --name"}}}); }), "MU308");
}

TEST(OptionsLine, TakesCommasInQuotes) {
  const auto texts = read_line(R"(a="x,b=1",y , b = 2,c="d""e,f")");
  EXPECT_EQ(words_of(texts), (Words{{"a", R"("x,b=1",y)"}, {"b", "2"}, {"c", R"("d""e,f")"}}));
  EXPECT_EQ(words_of(read_line(R"({a: ["x{1,2}", y], b: [one]})")), (Words{{"a", R"("x{1,2}",y)"}, {"b", "one,"}}));
  EXPECT_EQ(words_of(read_line(R"({fsdp: [stage=full, "unit_classes=A,B"]})")),
            (Words{{"fsdp", "stage=full,unit_classes=A,B"}}));
  EXPECT_EQ(thrown_id([] { read_line(R"(a="x,b=1)"); }), "MU300");
}

TEST(OptionsLine, QuotesAroundAValueThatNeedsNoneAreNoPartOfIt) {
  EXPECT_EQ(words_of(read_line(R"(a="x y",b="1",c="",d=" e",f="g",h)")),
            (Words{{"a", "x y"}, {"b", "1"}, {"c", R"("")"}, {"d", R"(" e")"}, {"f", "g,h"}}));
}

TEST(OptionsLine, RefusesANameThatStandsThereTwice) {
  EXPECT_EQ(thrown_id([] { read_line("a=1,b=2,a=3"); }), "MU305");
  EXPECT_EQ(thrown_id([] { read_line("{a: 1, a: 2}"); }), "MU004");
  EXPECT_EQ(thrown_id([] { read_line(R"({"fsdp": {"stage": "full"}, "fsdp.stage": "none"})"); }), "MU305");
  EXPECT_EQ(thrown_id([] { read_line("{fsdp.stage: none, fsdp: {stage: full}}"); }), "MU305");
}

TEST(OptionsLine, RefusesWhatIsNoPair) {
  for (const char* line : {"full", "=1", "a=1,=2"}) EXPECT_EQ(thrown_id([&] { read_line(line); }), "MU300") << line;
  EXPECT_EQ(thrown_id([] { read_line("{a: [}"); }), "MU004");
}

TEST(OptionsLine, OneTextOfSeveralOptionsGivesWayToSingleOnes) {
  RawOptions texts{{"fsdp", {"stage=full,replicas=2", "p"}}, {"fsdp.stage", {"none", "q"}}};
  expand(texts, "fsdp");
  EXPECT_EQ(words_of(texts), (Words{{"fsdp.replicas", "2"}, {"fsdp.stage", "none"}}));
  EXPECT_EQ(variable_of("power_sgd.rank"), "MUSTER_POWER_SGD_RANK");
}

}  // namespace
}  // namespace muster::options
