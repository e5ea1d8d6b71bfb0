#include <string>

#include <gtest/gtest.h>

#include "base/yaml.h"
#include "muster/base/detail/options.h"

namespace muster::options {
namespace {

TEST(YamlText, IsPlainWhereNobodyTakesItForSomethingElse) {
  EXPECT_EQ(yaml_text("bf16-mixed"), "bf16-mixed");
  EXPECT_EQ(yaml_text("-1"), "-1");
  EXPECT_EQ(yaml_text(".5"), ".5");
  EXPECT_EQ(yaml_text("no"), "'no'");
  EXPECT_EQ(yaml_text("Null"), "'Null'");
  EXPECT_EQ(yaml_text("it's: #1"), "'it''s: #1'");
  EXPECT_EQ(yaml_text("a\n\"b\"\\"), R"("a\x0a\"b\"\\")");
}

TEST(YamlText, ReadsBackToTheSame) {
  for (const std::string text : {"", "-", "-x", "~", "[1]", "{a: 1}", "two\nlines\n", " a ", "\t", "\"", "a,b", "&x",
                                 "1e-5", "%", "é\x1b", "'", "\\n"})
    EXPECT_EQ(File::parse("key: " + yaml_text(text), "text").section("").at("key").text, text);
}

}  // namespace
}  // namespace muster::options
