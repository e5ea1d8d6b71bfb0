#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "track/mlflow_run.h"

namespace muster::track {
namespace {

using nlohmann::json;

/// What was noticed, by kind.
struct Noticed {
  std::vector<std::string> kinds;
  Notice notice() {
    return [this](std::string_view kind, const std::string&) { kinds.emplace_back(kind); };
  }
};

std::vector<std::string> lines_of_step(std::initializer_list<LoggedValue> values, const Notice& notice) {
  return metric_lines({.step = 3, .time = 1.5, .values = {values.begin(), values.size()}}, notice);
}

TEST(MlflowLines, NumbersAndBoolsAreMetrics) {
  Noticed noticed;
  const auto lines = lines_of_step({{"loss", 0.1}, {"seen", int64_t{1} << 40}, {"right", true}}, noticed.notice());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(json::parse(lines[0])["metrics"], json::parse(R"([{"key":"loss","step":3,"timestamp":1500,"value":0.1},
                            {"key":"seen","step":3,"timestamp":1500,"value":1099511627776},
                            {"key":"right","step":3,"timestamp":1500,"value":1}])"));
  EXPECT_TRUE(noticed.kinds.empty());
}

TEST(MlflowLines, NumbersThatJsonLacksAreWords) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto lines = lines_of_step({{"a", std::nan("")}, {"b", kInfinity}, {"c", -kInfinity}}, Noticed().notice());
  const auto metrics = json::parse(lines.at(0))["metrics"];
  EXPECT_EQ(metrics[0]["value"], "NaN");
  EXPECT_EQ(metrics[1]["value"], "Infinity");
  EXPECT_EQ(metrics[2]["value"], "-Infinity");
}

TEST(MlflowLines, WhatHasNoPlaceIsNoticed) {
  Noticed noticed;
  const Histogram histogram;
  EXPECT_TRUE(lines_of_step({{"note", "text"}, {"weights", histogram}}, noticed.notice()).empty());
  EXPECT_EQ(noticed.kinds, (std::vector<std::string>{"texts", "histograms"}));
}

TEST(MlflowLines, ACallWithManyValuesIsSeveralLines) {
  std::vector<std::string> names;
  for (int i = 0; i < 2001; ++i) names.push_back("m" + std::to_string(i));
  std::vector<LoggedValue> values(names.size(), {"", 0.5});
  for (std::size_t i = 0; i < names.size(); ++i) values[i].name = names[i];
  const auto lines = metric_lines({.step = 0, .time = 0, .values = values}, Noticed().notice());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(json::parse(lines[0])["metrics"].size(), 1000u);
  EXPECT_EQ(json::parse(lines[2])["metrics"][0]["key"], "m2000");
}

TEST(MlflowLines, HyperparametersAreTexts) {
  Noticed noticed;
  const std::string long_text(7000, 'x');
  const std::vector<LoggedValue> values{{"lr", 1e-5}, {"deep", true}, {"net", "a \"b\"\n"}, {"long", long_text}};
  const auto params = json::parse(param_lines(values, noticed.notice()).at(0))["params"];
  EXPECT_EQ(params[0], (json{{"key", "lr"}, {"value", "1e-05"}}));
  EXPECT_EQ(params[1]["value"], "true");
  EXPECT_EQ(params[2]["value"], "a \"b\"\n");
  EXPECT_EQ(params[3]["value"].get<std::string>().size(), kLongestParam);
  EXPECT_EQ(noticed.kinds, std::vector<std::string>{"param"});
  const std::vector<LoggedValue> many(101, {"p", 1});
  EXPECT_EQ(param_lines(many, noticed.notice()).size(), 2u);
}

TEST(MlflowLines, NamesAreThoseThatMlflowTakes) {
  for (const auto* name : {"loss", "train/loss", "a.b-c_d e", "\xc3\xa9t\xc3\xa9", "lr-SGD/pg1"})
    EXPECT_EQ(mlflow_name(name), name);
  EXPECT_EQ(mlflow_name("acc@1:top"), "acc_1_top");
  EXPECT_EQ(mlflow_name("/a//b/./c/"), "a/b/c");
  EXPECT_EQ(mlflow_name("../../etc"), "_/_/etc");
  EXPECT_EQ(mlflow_name("/"), "_");
  const std::string long_name(300, 'n');
  const auto first = mlflow_name(long_name + "1"), second = mlflow_name(long_name + "2");
  EXPECT_EQ(first.size(), kLongestName);
  EXPECT_NE(first, second);
  Noticed noticed;
  lines_of_step({{"acc@1", 1}}, noticed.notice());
  EXPECT_EQ(noticed.kinds, std::vector<std::string>{"name"});
}

TEST(MlflowLines, TextIsCutBetweenCharacters) {
  EXPECT_EQ(cut_text("abc", 3), "abc");
  EXPECT_EQ(cut_text("a\xc3\xa9", 2), "a");
  EXPECT_EQ(cut_text("a\xc3\xa9z", 3), "a\xc3\xa9");
}

TEST(MlflowLines, ArtifactsAndTheEndAreLines) {
  EXPECT_EQ(artifact_line("plots/\"a\".svg"), "{\"artifact\":\"plots/\\\"a\\\".svg\"}\n");
  EXPECT_EQ(json::parse(status_line("FAILED"))["status"], "FAILED");
}

}  // namespace
}  // namespace muster::track
