#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/process.h"

namespace muster::launcher::testing {
namespace {

struct Ended {
  int code;
  std::string out, error;
};

Ended call(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {}) {
  Process::Setup setup;
  setup.environment = environment;
  Process process(arguments, setup);
  const int code = process.wait();
  return {code, process.out(), process.error()};
}

Ended run_options(std::vector<std::string> flags, const std::vector<std::string>& environment = {}) {
  flags.insert(flags.end(), {"--no-prefix", rank_program(), "options"});
  return call(muster_run(flags), environment);
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(CommandLine, TheFlagOfALineCountsMoreThanTheVariableUnderAnyName) {
  const auto ended =
      run_options({"--options", "mixed_precision=bf16-true"}, {"MUSTER_OPTIONS=precision=64-true,timeout=9"});
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_TRUE(has_line(ended.out, "precision=bf16-true")) << ended.out;
  EXPECT_TRUE(has_line(ended.out, "timeout=9s")) << ended.out;
}

TEST(CommandLine, TheLastOfAFlagCountsAndLinesAddUp) {
  const auto ended = run_options({"--timeout", "5", "--precision=64-true", "--mixed-precision=bf16-true", "--timeout=6",
                                  "--options", "strategy=ddp,even_batches=false", "--options", "even_batches=true",
                                  "--ddp", "bucket_cap_mb=7", "--ddp", "static_graph=true,bucket_cap_mb=8"});
  EXPECT_EQ(ended.code, 0) << ended.error;
  for (const auto* line : {"timeout=6s", "precision=bf16-true", "strategy=ddp", "even_batches=true",
                           "ddp.bucket_cap_mb=8", "ddp.static_graph=true"})
    EXPECT_TRUE(has_line(ended.out, line)) << line << " is missing in\n" << ended.out;
}

TEST(CommandLine, AFlagWithoutAValueIsNamed) {
  const std::vector<std::string> wrong[] = {
      {"--devices"}, {"--devices", "--nodes", "1", "true"}, {"--devices", "--", "true"}, {"--prefix=", "true"}};
  for (const auto& arguments : wrong) {
    const auto ended = call(muster_run(arguments));
    EXPECT_EQ(ended.code, 2);
    EXPECT_NE(ended.error.find("MU307: flag '" + arguments.front() + "' has no value"), std::string::npos)
        << ended.error;
  }
  // Not the value of the flag: it is the program.
  EXPECT_NE(call(muster_run({"--devices=", "true"})).error.find("MU030"), std::string::npos);
}

TEST(CommandLine, AFlagThatSaysNoTakesNoOtherWord) {
  for (const char* flag : {"--no-deterministic=warn", "--no_deterministic=warn"}) {
    const auto ended = run_options({flag});
    EXPECT_EQ(ended.code, 2) << ended.out;
    EXPECT_NE(ended.error.find("takes no value but true or false"), std::string::npos) << ended.error;
  }
  EXPECT_TRUE(has_line(run_options({"--no-deterministic=true"}).out, "deterministic=false"));
}

TEST(CommandLine, AFileOfNobodyIsRefused) {
  Folder folder;
  const std::pair<std::string, std::string> files[] = {{"devices: 2\n", "; its keys are devices; begin it with `run:`"},
                                                       {"runs:\n  devices: 2\n", "nearest is 'runs'"},
                                                       {"", "has no section `run`"}};
  for (const auto& [text, words] : files) {
    const auto ended = run_options({"--config", folder.write("f.yaml", text, 0644)});
    EXPECT_EQ(ended.code, 2);
    EXPECT_NE(ended.error.find("MU304"), std::string::npos) << ended.error;
    EXPECT_NE(ended.error.find(words), std::string::npos) << ended.error;
  }
}

TEST(CommandLine, AnOptionOutsideOfTheSectionIsRefusedAndOtherKeysAreNamed) {
  Folder folder;
  const auto outside =
      run_options({"--config", folder.write("f.yaml", "run:\n  devices: 1\nmixed_precision: bf16\n", 0644)});
  EXPECT_EQ(outside.code, 2);
  EXPECT_NE(outside.error.find("f.yaml line 3: option 'mixed_precision' stands outside of section `run`"),
            std::string::npos)
      << outside.error;
  const auto file = folder.write("g.yaml", "model: [{a: 1}]\nrun:\n  timeout: 7\ndata: {path: x}\n", 0644);
  const auto shared = run_options({"--config", file});
  EXPECT_EQ(shared.code, 0) << shared.error;
  EXPECT_TRUE(has_line(shared.out, "timeout=7s")) << shared.out;
  EXPECT_EQ(shared.error, "muster: " + file + ": only section `run` is read; without effect: data, model\n");
}

TEST(CommandLine, ALineOfOptionsWithinALineIsRefused) {
  Folder folder;
  for (const char* text :
       {"run:\n  options: options=precision=bf16\n", "run:\n  options: '{options: precision=bf16}'\n"}) {
    const auto ended = run_options({"--config", folder.write("f.yaml", text, 0644)});
    EXPECT_EQ(ended.code, 2);
    EXPECT_NE(ended.error.find("MU001: options of the "), std::string::npos) << ended.error;
  }
}

TEST(CommandLine, AnEmptyPathOfAFileIsRefused) {
  EXPECT_NE(run_options({"--config", ""}).error.find("MU004"), std::string::npos);
  EXPECT_EQ(run_options({}, {"MUSTER_CONFIG="}).code, 0);
}

TEST(CommandLine, TheFileMayStandAfterTheProgramAsOtherFlagsDo) {
  Folder folder;
  const auto file = folder.write("f.yaml", "run:\n  prefix: false\n  precision: bf17\n", 0644);
  const std::string muster = MUSTER_BINARY_DIR "/bin/muster";
  const auto taken = call({muster, "run", "true", "--devices=2", "--config=" + file});
  EXPECT_NE(taken.error.find("MU130"), std::string::npos) << "the file was not read: " << taken.error;
  const auto passed_on = call({muster, "run", "echo", "--config=" + file});
  EXPECT_EQ(passed_on.error, "");
  EXPECT_NE(passed_on.out.find("--config=" + file), std::string::npos) << passed_on.out;
}

TEST(CommandLine, AnItemOfAListMayHoldACommaWhereverItIsWritten) {
  Folder folder;
  const std::string wanted = "fsdp.ignored_modules=\"a{1,2}\",b";
  const auto file = folder.write("f.yaml", "run:\n  fsdp: {ignored_modules: ['a{1,2}', b]}\n", 0644);
  const std::vector<std::string> ways[] = {{"--fsdp-ignored-modules", "\"a{1,2}\",b"},
                                           {"--fsdp", "stage=full,ignored_modules=\"a{1,2}\",b"},
                                           {"--options", "fsdp.ignored_modules=\"a{1,2}\",b"},
                                           {"--config", file}};
  for (const auto& way : ways) {
    const auto ended = run_options(way);
    EXPECT_EQ(ended.code, 0) << ended.error;
    EXPECT_TRUE(has_line(ended.out, wanted)) << way.front() << "\n" << ended.out;
  }
}

TEST(CommandLine, WhatNobodyWouldReadIsRefused) {
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--options", "precision=64-true,precision=bf16"}, "MU305"},
      {{"--options", "options=precision=bf16"}, "MU001"},
      {{"--options", "num_processes=2"}, "MU306"},
      {{"--project-directory", "\xff"}, "MU308"},
      {{"--fsdp", "ignored_modules=\"a,stage=full"}, "MU196"},
      {{"--fsdp-unit-classes", "A,,B"}, "MU002"}};
  for (const auto& [flags, id] : wrong) {
    const auto ended = run_options(flags);
    EXPECT_EQ(ended.code, 2) << flags.back();
    EXPECT_NE(ended.error.find(id), std::string::npos) << ended.error;
  }
}

TEST(CommandLine, EveryCommandTakesHelp) {
  for (const auto* command : {"run", "launch", "config", "new", "show", "convert", "consolidate", "explain", "env",
                              "test", "options", "completion", "man"}) {
    const auto ended = call({MUSTER_BINARY_DIR "/bin/muster", command, "--help"});
    EXPECT_EQ(ended.code, 0) << command << ended.error;
    EXPECT_NE(ended.out, "") << command;
  }
}

}  // namespace
}  // namespace muster::launcher::testing
