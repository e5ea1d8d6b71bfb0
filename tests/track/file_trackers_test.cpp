#include "muster/track/detail/file_trackers.h"

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "run_files.h"

namespace muster {
namespace {

TEST(FileTrackers, AreMadeByName) {
  track::ScratchFolder folder;
  for (const auto& name : tracker_names()) EXPECT_EQ(make_file_tracker(name, folder)->name(), name);
}

TEST(FileTrackers, AnUnknownNameListsTheKnownOnes) {
  const auto words = testing::thrown([] { make_file_tracker("tensor_board", "."); });
  EXPECT_TRUE(words.starts_with("MU420: there is no tracker 'tensor_board'")) << words;
  EXPECT_NE(words.find("nearest is 'tensorboard'"), std::string::npos) << words;
  EXPECT_NE(words.find("csv, jsonl, tensorboard"), std::string::npos) << words;
}

TEST(FileTrackers, AFolderThatIsMissingIsRefused) {
  EXPECT_EQ(testing::thrown_id([] { make_file_tracker("csv", "/dev/null/none"); }), "MU421");
}

}  // namespace
}  // namespace muster
