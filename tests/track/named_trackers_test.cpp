#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "run_files.h"
#include "track/run.h"

namespace muster {
namespace {

using testing::thrown;
using testing::thrown_id;

TEST(NamedTrackers, AreMadeByName) {
  track::ScratchFolder folder;
  const TrackersOptions options{.mlflow = {.tracking_uri = "http://127.0.0.1:1"}, .timeout = std::chrono::seconds(0)};
  for (const auto& name : tracker_names())
    if (thrown_id([&] { check_tracker(name, options); }) != "MU532") {  // a build without libcurl
      EXPECT_EQ(make_tracker(name, folder, options)->name(), name);
    }
}

TEST(NamedTrackers, AnUnknownNameListsTheKnownOnes) {
  const auto words = thrown([] { make_tracker("tensor_board", ".", {}); });
  EXPECT_TRUE(words.starts_with("MU420: there is no tracker 'tensor_board'")) << words;
  EXPECT_NE(words.find("nearest is 'tensorboard'"), std::string::npos) << words;
  EXPECT_NE(words.find("csv, jsonl, mlflow, tensorboard"), std::string::npos) << words;
}

TEST(NamedTrackers, AFolderThatIsMissingIsRefused) {
  EXPECT_EQ(thrown_id([] { make_tracker("csv", "/dev/null/none", {}); }), "MU421");
}

TEST(NamedTrackers, AServiceWithoutOneIsRefusedWithAWay) {
  for (const auto* name :
       {"aim", "clearml", "comet", "comet_ml", "dvclive", "neptune", "swanlab", "trackio", "wandb"}) {
    const auto words = thrown([&] { check_tracker(name, {}); });
    EXPECT_TRUE(words.starts_with("MU531: Muster has no tracker '" + std::string(name) + "'")) << words;
    for (const auto* part : {"'mlflow'", "muster::Tracker", "name(), log() and finish()"})
      EXPECT_NE(words.find(part), std::string::npos) << words;
  }
  EXPECT_EQ(thrown_id([] { check_tracker("all", {}); }), "MU531");
}

TEST(NamedTrackers, MlflowWithoutServerIsRefusedBeforeThereIsAFolder) {
  const TrackersOptions options{.log_with = {"mlflow"}, .mlflow = {.tracking_uri = "sqlite:///runs.db"}};
  EXPECT_EQ(thrown_id([&] { check_tracker("mlflow", options); }), "MU530");
}

}  // namespace
}  // namespace muster
