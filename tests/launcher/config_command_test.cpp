#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/config_calls.h"

namespace muster::launcher::testing {
namespace {

const std::vector<std::string> kNoAccelerator{"CUDA_VISIBLE_DEVICES=-1"};

TEST(ConfigCommand, AsksAgainUntilAnAnswerFitsAndWritesAFileThatLaunchFollows) {
  const UserFolders user;
  // machines; ranks, wrong twice; strategy, wrong once; units; classes; reshard; precision; window; log folder
  const auto ended = user.call({"config"}, kNoAccelerator, "1\nmany\n0\n4\n9\n2\n1\nBlock,Head\nno\n1\n2\n-\n");
  ASSERT_EQ(ended.code, 0) << ended.error << ended.out;
  EXPECT_EQ(times(ended.out, "give a whole number from 1"), 2) << ended.out;
  EXPECT_EQ(times(ended.out, "give a number from 0 to 5"), 1) << ended.out;
  EXPECT_EQ(read_file(user.ours()).substr(read_file(user.ours()).find("run:")),
            "run:\n  use_cpu: true\n  num_machines: 1\n  num_processes: 4\n  strategy: fsdp\n  fsdp:\n"
            "    unit_classes: 'Block,Head'\n    reshard_after_forward: false\n  mixed_precision: bf16\n"
            "  gradient_accumulation_steps: 2\n");
  const auto shown = user.shown({});
  EXPECT_EQ(shown.at("file"), user.ours());
  EXPECT_EQ(shown.at("devices"), "4");
  EXPECT_EQ(shown.at("fsdp.unit_classes"), "Block,Head");
  EXPECT_EQ(shown.at("gradient_accumulation.num_steps"), "2");
}

TEST(ConfigCommand, AsksForAcceleratorsAndMachinesWhereThereAreSome) {
  const UserFolders user;
  const auto ended = user.call({"config", "--config_file", user.path() + "/c.yaml"}, user.accelerators(4),
                               "accelerators\n2\n1\n\nalpha\n5555\n3\n4\n0,7\n0,2\nddp\nno\n\n\n");
  ASSERT_EQ(ended.code, 0) << ended.error << ended.out;
  EXPECT_NE(ended.out.find("give a multiple of 2"), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("different ids from 0 to 3"), std::string::npos) << ended.out;
  const auto text = read_file(user.path() + "/c.yaml");
  EXPECT_EQ(text.substr(text.find("run:")),
            "run:\n  num_machines: 2\n  machine_rank: 1\n  main_process_ip: alpha\n  main_process_port: 5555\n"
            "  num_processes: 4\n  gpu_ids: '0,2'\n  strategy: ddp\n");
}

TEST(ConfigCommand, AnInputThatEndsWritesNothing) {
  const UserFolders user;
  const auto ended = user.call({"config"}, kNoAccelerator, "1\n2\n");
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.error.find("MU485"), std::string::npos) << ended.error;
  EXPECT_FALSE(std::filesystem::exists(user.ours()));
}

TEST(ConfigCommand, TheDefaultNeverReplacesAFile) {
  const UserFolders user;
  ASSERT_EQ(user.call({"config", "--default", "--mixed_precision", "bf16"}, user.accelerators(4)).code, 0);
  const auto written = read_file(user.ours());
  EXPECT_EQ(written.substr(written.find("run:")),
            "run:\n  num_machines: 1\n  num_processes: 4\n  mixed_precision: bf16\n");
  const auto again = user.call({"config", "default"}, kNoAccelerator);
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.error.find("stays as it is"), std::string::npos) << again.error;
  EXPECT_EQ(read_file(user.ours()), written);
  EXPECT_EQ(user.call({"config"}, kNoAccelerator, "no\n").code, 0);
  EXPECT_EQ(read_file(user.ours()), written);
}

TEST(ConfigCommand, WhatCannotBeWrittenIsSaid) {
  const UserFolders user;
  user.write("config", "a file where a folder is wanted");
  const auto ended = user.call({"config", "--default"}, kNoAccelerator);
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.error.find("MU484"), std::string::npos) << ended.error;
  const auto wrong = user.call(
      {"config", "--default", "--config_file", user.path() + "/x.yaml", "--mixed_precision", "fp8"}, kNoAccelerator);
  EXPECT_EQ(wrong.code, 2);
  EXPECT_FALSE(std::filesystem::exists(user.path() + "/x.yaml"));
}

TEST(ConfigCommand, UpdateWritesOursAgainAndAnothersAsOurs) {
  const UserFolders user;
  const auto theirs =
      user.write("theirs.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: bf16\n");
  ASSERT_EQ(user.call({"config", "update", "--config_file", theirs}).code, 0);
  EXPECT_EQ(user.shown({}).at("devices"), "2");
  EXPECT_EQ(user.shown({}).at("accelerator"), "cpu");
  EXPECT_EQ(user.shown({}).at("precision"), "bf16");
  const auto refused = user.call({"config", "update", "--config_file", theirs});
  EXPECT_NE(refused.error.find("MU484"), std::string::npos) << refused.error;
  write_file(user.ours(), "# mine\nrun:\n  num_processes: 3\n  fsdp: {stage: full}\n");
  ASSERT_EQ(user.call({"config", "update"}).code, 0);
  const auto text = read_file(user.ours());
  EXPECT_EQ(text.substr(text.find("run:")), "run:\n  num_processes: 3\n  fsdp:\n    stage: full\n");
  write_file(user.ours(), "run: {num_processes: 3}\nmodel: {width: 8}\n");
  EXPECT_NE(user.call({"config", "update"}).error.find("MU484"), std::string::npos);
}

TEST(ConfigCommand, SaysWhereItsFileIs) {
  const UserFolders user;
  EXPECT_EQ(user.call({"config", "path"}).out, user.ours() + "\n");
  EXPECT_NE(user.call({"config", "paths"}).error.find("MU006"), std::string::npos);
}

}  // namespace
}  // namespace muster::launcher::testing
