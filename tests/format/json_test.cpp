#include "format/json.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "base/text.h"
#include "checks.h"

namespace muster::format {
namespace {

using checks::expect_error;

Json parsed(std::string_view text) { return parse_json(text, "f", "MU210"); }

TEST(Json, ComesBackAsItWasWritten) {
  for (const char* text :
       {"null", "true", "[]", "{}", "[1,-1,0,9223372036854775807,-9223372036854775808]", "[0.1,-0.0,3.0,1e+300,5e-324]",
        R"({"b":{"a":[null,{"":1}]},"a":"\u0000\u001f\u007f\"\\/"})", "\"\xc3\xa4\xf0\x9f\x92\xa9\""})
    EXPECT_EQ(to_text(parsed(text)), text);
}

TEST(Json, KeepsIntegersAndNumbersApart) {
  EXPECT_TRUE(parsed("3").get<std::int64_t>());
  EXPECT_TRUE(parsed("3.0").get<double>());
  EXPECT_TRUE(parsed("3e0").get<double>());
  EXPECT_EQ(*parsed(R"({"a":1,"b":2})").find("b")->get<std::int64_t>(), 2);
  EXPECT_EQ(parsed("[1]").find("b"), nullptr);
}

TEST(Json, EveryDoubleKeepsItsBits) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    const Json again = parsed(to_text(Json(value)));
    ASSERT_TRUE(again.get<double>());
    EXPECT_EQ(std::memcmp(again.get<double>(), &value, sizeof(value)), 0) << value;
  }
}

TEST(Json, RefusesWhatIsNoneOrAmbiguous) {
  const auto refused = [](std::string_view text, std::string_view why) {
    expect_error<CheckpointError>("MU210", why, [&] { parsed(text); });
  };
  refused("", "not JSON at byte");
  refused("{\"a\":1", "not JSON at byte");
  refused("1 2", "not JSON at byte");
  refused("[1,]", "not JSON at byte");
  refused("nan", "not JSON at byte");
  refused("\"\xff\"", "not JSON at byte");
  refused(std::string_view("1\0", 2), "a zero byte");
  refused(R"({"a":1,"b":2,"\u0061":3})", "the name 'a' comes twice");
  refused("9223372036854775808", "beyond 64 bits");
  refused("-9223372036854775809", "beyond 64 bits");
  refused("123456789012345678901234567890", "beyond 64 bits");
  refused("1e999", "not JSON at byte");
  refused(std::string(201, '['), "nested too deeply");
  refused(std::string(1'000'000, '['), "nested too deeply");
  EXPECT_NO_THROW(parsed(std::string(200, '[') + std::string(200, ']')));
}

TEST(Json, KnowsUtf8) {
  for (const char* text : {"", "abc", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(is_utf8(text)) << text;
  for (const char* text : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2g", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82",
                           "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"})
    EXPECT_FALSE(is_utf8(text)) << text;
}

}  // namespace
}  // namespace muster::format
