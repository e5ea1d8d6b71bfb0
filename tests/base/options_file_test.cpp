#include <cstdio>
#include <fstream>

#include <gtest/gtest.h>

#include "base/yaml.h"
#include "muster/base/detail/options.h"
#include "muster/base/error.h"

namespace muster::options {
namespace {

TEST(OptionsFile, HoldsKeysListsAndSections) {
  auto file = File::parse("# a comment\ntop: 1\nlist: [a, 2]\nempty:\nrun:\n  devices: \"0,2\"\n", "f");
  EXPECT_EQ(file.section("").at("top").text, "1");
  EXPECT_EQ(file.section("").at("list").text, "a,2");
  EXPECT_EQ(file.section("").at("empty").text, "");
  EXPECT_EQ(file.section("run").at("devices").text, "0,2");
  EXPECT_EQ(file.section("run").at("devices").place, "f line 6");
  EXPECT_TRUE(file.section("none").empty());
  EXPECT_EQ(file.sections(), (std::vector<std::string>{"", "run"}));
  EXPECT_TRUE(File::parse("", "f").sections().empty());
}

TEST(OptionsFile, WhatIsNoFileOfOptionsIsMU004) {
  for (auto wrong : {"a: [1", "- a\n- b", "word", "a: [[1]]", "a: 1\na: 2", "run: {[x]: 1}", "a: *none"}) {
    try {
      File::parse(wrong, "name of the file");
      ADD_FAILURE() << "was taken: " << wrong;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU004");
      EXPECT_NE(std::string(error.what()).find("name of the file"), std::string::npos) << error.what();
    }
  }
}

TEST(OptionsFile, ReadsOneSectionAndNamesTheRest) {
  const auto file = File::parse("run:\n  a: 1\nmodel:\n  - {x: [[1]]}\ntop: 2\n", "f", "run");
  EXPECT_EQ(file.section("run").at("a").text, "1");
  EXPECT_EQ(file.sections(), std::vector<std::string>{"run"});
  ASSERT_EQ(file.outside().size(), 2u);
  EXPECT_EQ(file.outside().at("model").place, "f line 3");
  EXPECT_EQ(file.outside().at("top").place, "f line 5");
  EXPECT_EQ(File::parse("run:\n", "f", "run").sections(), std::vector<std::string>{"run"});
  EXPECT_TRUE(File::parse("top: 1\n", "f", "run").sections().empty());
}

TEST(OptionsFile, IsMadeOfOneSection) {
  const auto file = File::of_section("run", {{"a", {"1", "here"}}});
  EXPECT_EQ(file.section("run").at("a").text, "1");
  EXPECT_EQ(File::of_section("run", {}).sections(), std::vector<std::string>{"run"});
}

TEST(OptionsFile, WhatWouldBeReadByNobodyIsMU004) {
  for (auto wrong :
       {"run: 5", "run: [a]", "run:\n  a: 1\nrun:\n  b: 1", "run:\n  a: 1\n---\nrun:\n  a: 2", "run: &x\n  deep: *x"}) {
    try {
      File::parse(wrong, "f", "run");
      ADD_FAILURE() << "was taken: " << wrong;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU004") << wrong;
    }
  }
}

TEST(OptionsFile, IsLoadedByPath) {
  std::string path = ::testing::TempDir() + "/muster-options.yaml";
  std::ofstream(path) << "a: 1\n";
  EXPECT_EQ(File::parse(read_text(path), path).section("").at("a").place, path + " line 1");
  std::remove(path.c_str());
  for (const auto& wrong : {path, ::testing::TempDir()}) {
    try {
      File::parse(read_text(wrong), wrong);
      ADD_FAILURE() << wrong;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU004");
    }
  }
}

}  // namespace
}  // namespace muster::options
