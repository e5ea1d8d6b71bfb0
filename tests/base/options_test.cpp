#include "muster/base/detail/options.h"

#include <functional>

#include <gtest/gtest.h>

#include "base/options_text.h"
#include "muster/base/error.h"

namespace muster::options {
namespace {

/// Describes a field: option("salt", &Bread::salt, {.help = "how much"}).
template <class Struct, class T>
Option<Struct> option(std::string name, T Struct::*field, Description description) {
  return option_at<Struct>(
      std::move(name), [field](auto& values) -> auto& { return values.*field; }, std::move(description));
}

struct Bread {
  bool crust = true;
  int64_t crumbs = 5'000'000'000;
  double salt = 1.5;
  int slices = 12;
  std::string kind = "rye";
  std::vector<std::string> seeds;
  std::chrono::milliseconds rest = std::chrono::seconds(30);
};

template <class Struct>
Reading<Struct> read(const Table<Struct>& table, const Sources& sources) {
  return read_texts(table, find(table.descriptions(), table.section, sources));
}

Table<Bread> bread() {
  return {"bread",
          {option("crust", &Bread::crust, {.help = "leave it on", .variable = "BREAD_CRUST"}),
           option("crumbs", &Bread::crumbs, {.help = "how many"}),
           option("salt", &Bread::salt, {.help = "how much", .unit = "grams"}),
           option("slices", &Bread::slices, {.help = "how many", .variable = "BREAD_SLICES"}),
           option("kind", &Bread::kind, {.help = "of flour", .variable = "BREAD_KIND"}),
           option("seeds", &Bread::seeds, {.help = "on top"}),
           option("rest_time", &Bread::rest, {.help = "before baking"})}};
}

std::string message_of(const Sources& sources) {
  try {
    read(bread(), sources);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Options, DefaultsComeFromTheStruct) {
  auto reading = read(bread(), {});
  EXPECT_TRUE(reading.places.empty());
  EXPECT_EQ(reading.values.slices, 12);
  EXPECT_EQ(bread().options[1].description.default_text, "5000000000");
  EXPECT_EQ(bread().options[6].description.default_text, "30s");
  EXPECT_EQ(bread().options[6].description.flag(), "--rest-time");
  EXPECT_TRUE(bread().options[0].description.is_switch);
}

TEST(Options, FlagOverVariableOverFileOverDefault) {
  Sources sources;
  sources.file = File::parse("bread:\n  slices: 1\n  kind: oat\n  salt: 0.25\n", "b.yaml");
  sources.variables = {{"BREAD_SLICES", "2"}, {"BREAD_KIND", "wheat"}, {"BREAD_CRUST", ""}};
  sources.flags = {{"slices", "3"}};
  auto [places, values] = read(bread(), sources);
  EXPECT_EQ(values.slices, 3);
  EXPECT_EQ(values.kind, "wheat");
  EXPECT_EQ(values.salt, 0.25);
  EXPECT_TRUE(values.crust);
  EXPECT_EQ(places, (std::map<std::string, std::string>{
                        {"slices", "flag --slices"}, {"kind", "variable BREAD_KIND"}, {"salt", "b.yaml line 4"}}));
}

TEST(Options, EveryTypeIsReadAndRefused) {
  Sources sources;
  sources.flags = {{"crust", "no"}, {"crumbs", "-7"}, {"salt", "1e-3"},
                   {"slices", "0"}, {"seeds", "a,b"}, {"rest_time", "1.5min"}};
  auto values = read(bread(), sources).values;
  EXPECT_FALSE(values.crust);
  EXPECT_EQ(values.crumbs, -7);
  EXPECT_EQ(values.salt, 1e-3);
  EXPECT_EQ(values.slices, 0);
  EXPECT_EQ(values.seeds, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(values.rest.count(), 90000);
  EXPECT_EQ(Value<std::vector<std::string>>::write(values.seeds), "a,b");
  EXPECT_EQ(Value<std::chrono::milliseconds>::write(std::chrono::milliseconds(1500)), "1500ms");
  const std::pair<std::string, std::string> wrong[] = {
      {"crust", "maybe"},       {"crumbs", "1.5"},  {"crumbs", ""},          {"salt", "much"},      {"slices", "12x"},
      {"slices", "9999999999"}, {"rest_time", "s"}, {"rest_time", "3 days"}, {"rest_time", "30:00"}};
  for (const auto& [name, text] : wrong) {
    Sources bad;
    bad.flags = {{name, text}};
    EXPECT_EQ(message_of(bad).substr(0, 12), "MU002: flag ") << name << "=" << text;
  }
}

TEST(Options, DurationsAreSecondsUnitsOrClocks) {
  const auto read = [](const std::string& text) {
    std::chrono::milliseconds value{-1};
    const auto wanted = Value<std::chrono::milliseconds>::read(text, value);
    return wanted.empty() ? value.count() : -1;
  };
  for (const auto* half_an_hour : {"1800", "1800s", "1800000ms", "30min", "0.5h", "0:30:00", "00:30:00", "00:00:30:00"})
    EXPECT_EQ(read(half_an_hour), 30 * 60 * 1000) << half_an_hour;
  for (const auto* two_days : {"172800", "48h", "02:00:00:00", "2 days, 0:00:00", "1 day, 24:00:00"})
    EXPECT_EQ(read(two_days), 2 * read("24h")) << two_days;
  EXPECT_EQ(read("1.5"), 1500);
  for (const auto* wrong : {"", "-1", "1e9", "30m", "30:00", "0:30", "2 days", "day, 0:00:00", "0:30:00s", "1:2:3"})
    EXPECT_EQ(read(wrong), -1) << wrong;
}

TEST(Options, ATextMayStandInQuotesAndIsNoList) {
  Sources sources;
  sources.line = split_pairs("kind=\"rye,oat\",crust=True", "line");
  auto values = read(bread(), sources).values;
  EXPECT_EQ(values.kind, "rye,oat");
  EXPECT_TRUE(values.crust);
  sources = {};
  sources.file = File::parse("bread:\n  kind: [rye]\n", "b.yaml");
  EXPECT_EQ(message_of(sources),
            "MU002: b.yaml line 2: option 'kind' is 'rye,', but one text and no list is wanted: correct it there");
}

TEST(Options, ABadValueNamesItsPlaceAndWhatIsWanted) {
  Sources sources;
  sources.file = File::parse("bread:\n  salt: much\n", "b.yaml");
  EXPECT_EQ(message_of(sources),
            "MU002: b.yaml line 2: option 'salt' is 'much', but a number is wanted (grams): correct it there");
  sources.file = {};
  sources.variables = {{"BREAD_SLICES", "all"}};
  EXPECT_EQ(message_of(sources),
            "MU002: variable BREAD_SLICES: option 'slices' is 'all', but a whole number is wanted: correct it there");
}

TEST(Options, AnUnknownKeyListsTheKnownOnes) {
  Sources sources;
  sources.file = File::parse("bread:\n  slice: 1\nother:\n  slice: 1\n", "b.yaml");
  EXPECT_EQ(
      message_of(sources),
      "MU001: b.yaml line 2: unknown option 'slice' in section 'bread'; nearest is 'slices'; the known ones are crust, "
      "crumbs, salt, slices, "
      "kind, seeds, rest_time");
}

TEST(Options, AreFoundByNameAliasAndFlag) {
  const std::vector<Description> table{{.name = "nodes", .aliases = {"num_nodes"}, .type = "number or none"},
                                       {.name = "log_dir"}};
  EXPECT_EQ(find_option(table, "num_nodes"), &table[0]);
  EXPECT_EQ(find_option(table, name_of_flag("--log-dir=x")), &table[1]);
  EXPECT_EQ(find_option(table, "log-dir"), nullptr);
  EXPECT_TRUE(table[0].may_be_none());
  EXPECT_FALSE(table[1].may_be_none());
}

TEST(Options, TheReferenceTableHasEveryOption) {
  auto page = to_markdown(bread().descriptions());
  EXPECT_NE(page.find("| `crust` | `--crust`, `--no-crust` | `BREAD_CRUST` | true or false | `true` | leave it on |\n"),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("| `salt` | `--salt` | – | number (grams) | `1.5` | how much |\n"), std::string::npos) << page;
}

struct Oven {
  std::function<void()> bell;
  struct {
    int degrees = 200;
  } heat;
};

TEST(Options, AFieldWithinAFieldAndOneForCodeAloneAreDescribed) {
  const Table<Oven> oven{"",
                         {option("bell", &Oven::bell, {.help = "rings", .variable = "BELL"}),
                          option_at<Oven>("heat.degrees", [](auto& o) -> auto& { return o.heat.degrees; },
                                          {.help = "how hot", .aliases = {"hot"}})}};
  EXPECT_TRUE(oven.options[0].description.code_only);
  EXPECT_EQ(oven.options[0].description.variable, "");
  EXPECT_EQ(oven.options[1].description.type, "whole number");
  EXPECT_EQ(oven.options[1].description.flag(), "--heat-degrees");
  Sources sources;
  sources.line = {{"hot", {"220", "line"}}};
  EXPECT_EQ(read(oven, sources).values.heat.degrees, 220);
  sources.line = {{"bell", {"ding", "line"}}};
  EXPECT_THROW(read(oven, sources), ConfigError);
  EXPECT_NE(to_markdown(oven.descriptions()).find("| `bell` | code only | – | – | – | rings |\n"), std::string::npos);
  EXPECT_NE(to_markdown(oven.descriptions()).find("| `heat.degrees`, `hot` | `--heat-degrees` |"), std::string::npos);
}

TEST(Options, TheLineStandsBetweenFlagsAndVariables) {
  Sources sources;
  sources.variables = {{"BREAD_SLICES", "2"}, {"BREAD_KIND", "wheat"}};
  sources.line = {{"slices", {"4", "line"}}, {"kind", {"oat", "line"}}};
  sources.flags = {{"slices", "3"}};
  auto [places, values] = read(bread(), sources);
  EXPECT_EQ(values.slices, 3);
  EXPECT_EQ(values.kind, "oat");
}

TEST(Options, TheFlagsLineCountsMoreThanTheVariableUnderAnyName) {
  const Table<Bread> table{"", {option("slices", &Bread::slices, {.help = "how many", .aliases = {"cuts"}})}};
  for (const auto* flag : {"slices", "cuts"})
    for (const auto* variable : {"slices", "cuts"}) {
      Sources sources;
      sources.flag_line = {{flag, {"3", "flag"}}};
      sources.line = {{variable, {"4", "line"}}};
      const auto [places, values] = read(table, sources);
      EXPECT_EQ(values.slices, 3) << flag << " " << variable;
      EXPECT_EQ(places.at("slices"), "flag");
    }
}

TEST(Options, OneSourceMustNotSetAnOptionUnderTwoNames) {
  const Table<Bread> table{"", {option("slices", &Bread::slices, {.help = "how many", .aliases = {"cuts"}})}};
  Sources sources;
  sources.line = {{"cuts", {"3", "here"}}, {"slices", {"4", "there"}}};
  try {
    read(table, sources);
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "MU305: here ('cuts') and there both set option 'slices'; keep one of them");
  }
}

TEST(Options, ItemsOfAListMayHoldCommas) {
  using List = Value<std::vector<std::string>>;
  std::vector<std::string> items;
  EXPECT_EQ(List::read(R"("a{1,2}", b ,"say ""x""",)", items), "");
  EXPECT_EQ(items, (std::vector<std::string>{"a{1,2}", "b", "say \"x\""}));
  for (const std::vector<std::string>& list :
       {std::vector<std::string>{}, {""}, {"a"}, {"a,b", ""}, {"\"", "\",\"", " x "}, {"a\"b", "c=d,e"}}) {
    EXPECT_EQ(List::read(List::write(list), items), "") << List::write(list);
    EXPECT_EQ(items, list) << List::write(list);
  }
  for (const auto* wrong : {"a,,b", "\"a", "\"a\"b", ",a"}) EXPECT_NE(List::read(wrong, items), "") << wrong;
}

TEST(Options, ARequestReplacesADefaultAndContradictsNothingElse) {
  const auto slices = bread().options[3];
  Bread program;
  follow(slices, {"3", "line"}, program);
  EXPECT_EQ(program.slices, 3);
  follow(slices, {"3", "line"}, program);
  try {
    follow(slices, {"4", "line"}, program);
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.id(), "MU171");
  }
}

}  // namespace
}  // namespace muster::options
