#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/process.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using launcher::testing::Folder;
using launcher::testing::Process;
using launcher::testing::times;

using Words = std::vector<std::string>;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kProgram{MUSTER_BINARY_DIR "/tests/trainer_main_program"};
const Words kOnTwo{MUSTER_BINARY_DIR "/bin/muster", "run", "--devices", "2", "--no-prefix"};

struct Ended {
  int code;
  std::string out, error;
};

Ended run(const Words& words) {
  Process process(words, {.environment = {"OMP_NUM_THREADS=1"}, .input = {}, .terminal = false});
  const int code = process.wait();
  return {code, process.out(), process.error()};
}

std::string weights_of(const Ended& ended) {
  EXPECT_EQ(ended.code, 0) << ended.error;
  const auto at = ended.out.find("weights ");
  return at == std::string::npos ? "none in " + ended.out : ended.out.substr(ended.out.rfind('\n', at) + 1);
}

/// What the main by hand says, by flags and a file.
Words fit(const Folder& folder) {
  const auto config =
      folder.write("fit.yaml",
                   "seed_everything: 5\ntrainer:\n  max_epochs: 3\n  default_root_dir: " + folder.path() +
                       "\nmodel: {rate: 0.2, width: 6}\ndata:\n  batch_size: 2\n",
                   0644);
  return kProgram + Words{"fit", "--config", config, "--model.rate", "0.1"};
}

TEST(MainProgram, TrainsAsAMainByHandDoes) {
  const Folder folder;
  const auto by_hand = weights_of(run(kProgram + Words{"by_hand", folder.path(), "0"}));
  EXPECT_NE(by_hand.find("1 ranks, 48 steps"), std::string::npos) << by_hand;
  EXPECT_EQ(weights_of(run(fit(folder))), by_hand);
}

TEST(MainProgram, TrainsAsAMainByHandDoesOnTwoRanksHoweverTheyStart) {
  const Folder folder;
  const auto by_hand = weights_of(run(kProgram + Words{"by_hand", folder.path(), "2"}));
  EXPECT_NE(by_hand.find("2 ranks, 24 steps"), std::string::npos) << by_hand;
  EXPECT_EQ(weights_of(run(fit(folder) + Words{"--trainer.devices", "2"})), by_hand);
  EXPECT_EQ(weights_of(run(kOnTwo + fit(folder))), by_hand);
}

TEST(MainProgram, OfALaunchersRanksOneSpeaks) {
  const auto config = run(kOnTwo + kProgram + Words{"fit", "--print_config"});
  EXPECT_EQ(config.code, 0) << config.error;
  EXPECT_EQ(times(config.out, "seed_everything"), 1) << config.out;
  const auto help = run(kOnTwo + kProgram + Words{"--help"});
  EXPECT_EQ(times(help.out, "Options of the module"), 1) << help.out;
}

TEST(MainProgram, AWrongCallEndsByTwoAndIsSaidOnce) {  // MU500
  const auto alone = run(kProgram + Words{"fit", "--model.rates", "1"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_EQ(alone.error.find("muster: MU500: nothing has run"), 0U) << alone.error;
  EXPECT_EQ(alone.out, "");
  const auto on_two = run(kOnTwo + kProgram + Words{"fit", "--model.rates", "1"});
  EXPECT_EQ(on_two.code, 2);
  EXPECT_EQ(times(on_two.error, "nothing has run"), 1) << on_two.error;
}

TEST(MainProgram, WhatFailsInARunIsNoWrongCall) {
  const Folder folder;
  const auto ended = run(kProgram + Words{"fit", "--trainer.default_root_dir", folder.path(), "--model.fail=step"});
  EXPECT_NE(ended.code, 0);
  EXPECT_NE(ended.code, 2);
  EXPECT_NE(ended.error.find("a step failed"), std::string::npos) << ended.error;
}

TEST(MainProgram, ValidatesTestsAndPredictsWithTheOptionsOfTheCheckpoint) {
  const Folder folder;
  const Words here{"--trainer.default_root_dir", folder.path()};
  ASSERT_EQ(run(kProgram + Words{"fit", "--model.width", "5"} + here).code, 0);
  fs::path checkpoint;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
    if (entry.path().extension() == ".ckpt") checkpoint = entry.path();
  ASSERT_FALSE(checkpoint.empty());
  const Words from{"--ckpt_path", checkpoint.string()};
  const auto validated = run(kProgram + Words{"validate"} + from + here);
  EXPECT_EQ(validated.out.find("val_loss: "), 0U) << validated.out << validated.error;
  const auto tested = run(kProgram + Words{"test"} + from + here);
  EXPECT_EQ(tested.out.find("test_loss: "), 0U) << tested.out << tested.error;
  const auto predicted = run(kProgram + Words{"predict"} + from + here);
  EXPECT_EQ(predicted.out, "predicted 5\n") << predicted.error;
  // What the call says counts more: then the weights do not fit.
  EXPECT_NE(run(kProgram + Words{"test", "--model.width", "6"} + from + here).code, 0);
}

}  // namespace
}  // namespace muster
