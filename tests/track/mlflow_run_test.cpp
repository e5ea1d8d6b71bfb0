#include "track/mlflow_run.h"

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "run_files.h"

namespace muster::track {
namespace {

using muster::testing::thrown_id;

MlflowRun described(const TrackersOptions& options, const Environment& variables) {
  return new_run("logs/version_3", options, "http://host", variables);
}

TEST(MlflowRun, IsNamedByCodeThenByVariablesThenByTheFolder) {
  const Environment variables{
      {"MLFLOW_EXPERIMENT_NAME", "outer"}, {"MLFLOW_RUN_ID", "r9"}, {"MLFLOW_RUN_NAME", "night"}};
  const auto plain = described({.name = "digits"}, {});
  EXPECT_EQ(plain.experiment_name + " " + plain.run_name + " " + plain.run_id, "digits version_3 ");
  EXPECT_EQ(described({}, {}).experiment_name, "Default");
  const auto outer = described({.name = "digits"}, variables);
  EXPECT_EQ(outer.experiment_name + " " + outer.run_name + " " + outer.run_id, "outer night r9");
  const auto code = described({.mlflow = {.experiment_name = "mine", .run_id = "r1", .run_name = "day"}}, variables);
  EXPECT_EQ(code.experiment_name + " " + code.run_name + " " + code.run_id, "mine day r1");
  const auto by_id = described({.name = "digits"}, {{"MLFLOW_EXPERIMENT_ID", "12"}});
  EXPECT_EQ(by_id.experiment_name + by_id.experiment_id, "12");
}

TEST(MlflowRun, HasTagsOfCodeAndVariables) {
  const auto run = described({.mlflow = {.tags = {{"team", "vision"}, {"long", std::string(9000, 'x')}}}},
                             {{"MLFLOW_TAGS", R"({"team":"outer","n":3})"}, {"USER", "anna"}});
  EXPECT_EQ(run.tags.at("team"), "vision");
  EXPECT_EQ(run.tags.at("n"), "3");
  EXPECT_EQ(run.tags.at("mlflow.user"), "anna");
  EXPECT_EQ(run.tags.at("long").size(), 5000u);
  EXPECT_EQ(run.tags.at("muster.run"), run.key);
  EXPECT_NE(described({}, {}).key, run.key);
  EXPECT_EQ(thrown_id([] { described({}, {{"MLFLOW_TAGS", "team=vision"}}); }), "MU530");
}

TEST(MlflowRun, IsKeptInTheFolder) {
  ScratchFolder folder;
  auto run = described({.name = "digits"}, {});
  run.sent = uint64_t{1} << 40;
  run.ended = true;
  EXPECT_FALSE(load_run(folder));
  save_run(run, folder);
  const auto loaded = load_run(folder);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->sent, run.sent);
  EXPECT_EQ(loaded->tags, run.tags);
  EXPECT_TRUE(loaded->ended);
  EXPECT_EQ(continued_run(folder, described({.name = "digits"}, {})).key, run.key);
}

TEST(MlflowRun, AnotherServerOrRunIsRefused) {
  ScratchFolder folder;
  auto run = described({}, {});
  run.run_id = "r1";
  save_run(run, folder);
  EXPECT_EQ(thrown_id([&] { continued_run(folder, new_run("", {}, "http://other", {})); }), "MU530");
  EXPECT_EQ(thrown_id([&] { continued_run(folder, described({.mlflow = {.run_id = "r2"}}, {})); }), "MU530");
  EXPECT_EQ(continued_run(folder, described({.mlflow = {.run_id = "r1"}}, {})).key, run.key);
}

TEST(MlflowRun, ADamagedFileIsRefused) {
  ScratchFolder folder;
  for (const auto* text : {"", "{", "[]", "{}", "{\"sent\":\"x\"}"}) {
    write_text(folder / "mlflow.json", text);
    EXPECT_EQ(thrown_id([&] { load_run(folder); }), "MU537") << text;
  }
}

}  // namespace
}  // namespace muster::track
