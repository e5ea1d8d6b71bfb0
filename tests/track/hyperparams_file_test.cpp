#include <limits>

#include <gtest/gtest.h>

#include "run_files.h"
#include "track/file_trackers.h"

namespace muster::track {
namespace {

TEST(HyperparamsFile, HoldsAllCallsByName) {
  ScratchFolder folder;
  HyperparamsFile file(folder);
  log_hyperparams_to(file, {{"optimizer/name", "Adam\n"}, {"learning_rate", 0.1}, {"deep", false}});
  log_hyperparams_to(file, {{"learning_rate", 1e-5}, {"width", 64}});
  EXPECT_EQ(read_text(folder / "hparams.yaml"),
            "deep: false\nlearning_rate: 1.0e-05\n\"optimizer/name\": \"Adam\\n\"\nwidth: 64\n");
}

// As PyYAML reads them: 1e-05, no and 1 would be a text, a bool and an integer.
TEST(HyperparamsFile, KeepsTypesInYaml11) {
  ScratchFolder folder;
  HyperparamsFile file(folder);
  log_hyperparams_to(file, {{"no", "off"}, {"null", 1.0}, {"true", 1e22}, {"y", 2.5e-7}});
  log_hyperparams_to(file, {{"inf", std::numeric_limits<double>::infinity()}, {"n", "12"}});
  EXPECT_EQ(read_text(folder / "hparams.yaml"),
            "\"inf\": .inf\n\"n\": \"12\"\n\"no\": \"off\"\n\"null\": 1.0\n\"true\": 1.0e+22\n\"y\": 2.5e-07\n");
}

}  // namespace
}  // namespace muster::track
