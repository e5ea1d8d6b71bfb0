#include "checkpoint/state_json.h"

#include <bit>
#include <map>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint_cases.h"
#include "format/checks.h"

namespace muster::checkpoint {
namespace {

using checks::expect_error;

std::string text_of(const State& state) {
  return format::to_text(json_of(
      state, [](const std::string& path, const at::Tensor&) { return path; }, "own"));
}

State state_in(const std::string& text) {
  return state_of(
      format::parse_json(text, "f", "MU213"), [](const std::string&) { return at::Tensor(); }, "f");
}

TEST(StateJson, WritesWhatTheFormatSays) {
  EXPECT_EQ(text_of({}), "null");
  EXPECT_EQ(text_of(State::List{true, 1, 3.0, -0.0, 1e-5, "a\"\n"}), "[true,1,3.0,-0.0,1e-05,\"a\\\"\\u000a\"]");
  EXPECT_EQ(text_of(-std::numeric_limits<double>::infinity()), R"({"number":"fff0000000000000"})");
  EXPECT_EQ(text_of(std::string("\0\xff", 2)), R"({"bytes":"00ff"})");
  EXPECT_EQ(text_of(State::Map{{"b%/\xff", at::arange(1)}, {"a", State::List{at::arange(1), at::Tensor()}}}),
            R"({"map":{"b%25/%ff":{"tensor":"own/b%25%2f%ff"},"a":[{"tensor":"own/a/0"},{"tensor":null}]}})");
}

TEST(StateJson, EveryKindComesBackToTheBit) {
  const State state = every_kind_of_state(3);
  std::map<std::string, at::Tensor> stored;
  const auto json = json_of(
      state,
      [&](const std::string& path, const at::Tensor& tensor) {
        EXPECT_TRUE(stored.emplace(path, tensor).second) << "the path " << path << " comes twice";
        return path;
      },
      "shared");
  const auto text = format::to_text(json);
  const State again = state_of(
      format::parse_json(text, "f", "MU213"), [&](const std::string& name) { return stored.at(name); }, "f");
  EXPECT_TRUE(identical(state, again));
  EXPECT_EQ(stored.size(), 5u);
}

TEST(StateJson, EveryDoubleKeepsItsBits) {
  for (const std::uint64_t bits : {0x7ff8000000000001ULL, 0xfff0000000000123ULL, 0x0000000000000001ULL,
                                   0x3fb999999999999aULL, 0x7fefffffffffffffULL, 0x8000000000000000ULL}) {
    const State again = state_in(text_of(std::bit_cast<double>(static_cast<std::uint64_t>(bits))));
    EXPECT_EQ(std::bit_cast<std::uint64_t>(again.number()), bits);
  }
}

TEST(StateJson, RefusesWhatItCannotHaveWritten) {
  for (const char* text : {"{}", R"({"map":{},"more":1})", R"({"map":[]})", R"({"tensor":3})", R"({"bytes":"0"})",
                           R"({"bytes":"0g"})", R"({"number":"12"})", R"({"number":1.0})", R"({"map":{"%2":1}})",
                           R"({"map":{"%zz":1}})", R"({"map":{"a":1,"%61":2}})", R"({"other":1})"})
    expect_error<CheckpointError>("MU213", "a state in it", [&] { state_in(text); });
}

TEST(StateJson, EscapesOnlyWhatItMust) {
  EXPECT_EQ(escaped("a/b \xc3\xa4", false), "a/b \xc3\xa4");
  EXPECT_EQ(escaped("a/b \xc3\xa4", true), "a%2fb \xc3\xa4");
  EXPECT_EQ(escaped("\xc3", false), "%c3");
  EXPECT_EQ(escaped("\xe2\x82g\xf0\x9f\x92\xa9\xff%", true), "%e2%82g\xf0\x9f\x92\xa9%ff%25");
}

}  // namespace
}  // namespace muster::checkpoint
