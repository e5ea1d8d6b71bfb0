#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "run_files.h"
#include "track/run.h"

namespace muster {
namespace {

using testing::thrown;
using testing::thrown_id;
using track::ScratchFolder;

TEST(RunFolder, CountsVersionsAsLightningDoes) {
  ScratchFolder root;
  EXPECT_EQ(make_run_folder({.name = "digits", .root = root}), root / "digits/version_0");
  EXPECT_EQ(make_run_folder({.name = "digits", .root = root}), root / "digits/version_1");
  std::filesystem::create_directory(root / "digits/version_7");
  std::filesystem::create_directory(root / "digits/version_8b");
  std::filesystem::create_directory(root / "digits/version_");
  EXPECT_EQ(make_run_folder({.name = "digits", .root = root}), root / "digits/version_8");
  EXPECT_EQ(make_run_folder({.root = root}), root / "version_0");
  EXPECT_TRUE(std::filesystem::is_directory(root / "version_0"));
}

TEST(RunFolder, TakesAVersionAsItIs) {
  ScratchFolder root;
  EXPECT_EQ(make_run_folder({.name = "a/b", .root = root, .version = "best"}), root / "a/b/best");
  EXPECT_EQ(make_run_folder({.name = "a/b", .root = root, .version = "best"}), root / "a/b/best");
}

TEST(RunFolder, RefusesWhatCannotBeMade) {
  ScratchFolder root;
  track::write_text(root / "file", "");
  EXPECT_NE(thrown([&] { make_run_folder({.root = root / "file"}); }).find("give another root"), std::string::npos);
  EXPECT_EQ(thrown_id([&] { make_run_folder({.name = "x", .root = root / "file"}); }), "MU421");
  EXPECT_EQ(thrown_id([&] { make_run_folder({.root = root, .version = "../x"}); }), "MU425");
  EXPECT_EQ(thrown_id([&] { make_run_folder({.name = "/x", .root = root}); }), "MU425");
}

}  // namespace
}  // namespace muster
