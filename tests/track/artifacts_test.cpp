#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "muster/track/trackers.h"
#include "run_files.h"
#include "track/run.h"

namespace muster::track {
namespace {

void make_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  write_text(path, text);
}

TEST(Artifacts, FilesAndFoldersAreCopied) {
  ScratchFolder root;
  make_file(root / "from/plot.svg", "plot");
  make_file(root / "from/more/deep.txt", "deep");
  EXPECT_EQ(copy_artifact(root / "from/plot.svg", root / "run", "plot.svg"), root / "run/artifacts/plot.svg");
  EXPECT_EQ(read_text(root / "run/artifacts/plot.svg"), "plot");
  copy_artifact(root / "from", root / "run", "all/of it");
  EXPECT_EQ(read_text(root / "run/artifacts/all/of it/more/deep.txt"), "deep");
  make_file(root / "from/plot.svg", "another");
  copy_artifact(root / "from/plot.svg", root / "run", "plot.svg");
  EXPECT_EQ(read_text(root / "run/artifacts/plot.svg"), "another");
}

TEST(Artifacts, WhatCannotBeKeptIsRefused) {  // MU457
  ScratchFolder root;
  make_file(root / "plot.svg", "plot");
  for (const auto* name : {"", "../plot.svg", "/plot.svg"})
    EXPECT_EQ(testing::thrown_id([&] { copy_artifact(root / "plot.svg", root / "run", name); }), "MU457") << name;
  EXPECT_EQ(testing::thrown_id([&] { copy_artifact(root / "none", root / "run", "none"); }), "MU457");
}

TEST(Artifacts, TrackersGetTheCopyInTheOrderOfCalls) {
  struct Listing : Tracker {
    void log(const LoggedStep& step) override { seen.push_back(std::to_string(step.step)); }
    void log_artifact(std::string_view name, const std::filesystem::path& copy) override {
      seen.push_back(std::string(name) + " " + read_text(copy));
    }
    std::vector<std::string> seen = {};
  };
  ScratchFolder root;
  make_file(root / "plot.svg", "plot");
  const auto listing = std::make_shared<Listing>();
  Trackers trackers({.log_with = {listing}, .root = root / "logs"});
  trackers.log({{"a", 1}}, 5);
  trackers.log_artifact(root / "plot.svg");
  trackers.log_artifact(root / "plot.svg", "again.svg");
  trackers.log({{"a", 1}}, 6);
  trackers.finish();
  EXPECT_EQ(listing->seen, (std::vector<std::string>{"5", "plot.svg plot", "again.svg plot", "6"}));
  EXPECT_NO_THROW(Trackers().log_artifact("none"));
}

}  // namespace
}  // namespace muster::track
