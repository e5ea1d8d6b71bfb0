#include "muster/base/detail/options.h"

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::options {
namespace {

struct Bread {
  bool crust = true;
  int64_t crumbs = 5'000'000'000;
  double salt = 1.5;
  int slices = 12;
  std::string kind = "rye";
  std::vector<std::string> seeds;
  std::chrono::milliseconds rest = std::chrono::seconds(30);
};

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
      {"crust", "maybe"},       {"crumbs", "1.5"},   {"crumbs", ""},     {"salt", "much"},       {"slices", "12x"},
      {"slices", "9999999999"}, {"rest_time", "30"}, {"rest_time", "s"}, {"rest_time", "3 days"}};
  for (const auto& [name, text] : wrong) {
    Sources bad;
    bad.flags = {{name, text}};
    EXPECT_EQ(message_of(bad).substr(0, 12), "MU002: flag ") << name << "=" << text;
  }
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
  EXPECT_EQ(message_of(sources),
            "MU001: b.yaml line 2: unknown option 'slice' in section 'bread'; the known ones are crust, crumbs, salt, "
            "slices, "
            "kind, seeds, rest_time");
}

TEST(Options, TheReferenceTableHasEveryOption) {
  auto page = to_markdown(bread().descriptions());
  EXPECT_NE(page.find("| `--crust`, `--no-crust` | `crust` | `BREAD_CRUST` | `true` | – | leave it on |\n"),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("| `--salt` | `salt` | – | `1.5` | grams | how much |\n"), std::string::npos) << page;
}

}  // namespace
}  // namespace muster::options
