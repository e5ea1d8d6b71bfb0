#include "launcher/child.h"

#include <poll.h>

#include <gtest/gtest.h>

#include "launcher/process.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

ExitStatus run_shell(const std::string& script) {
  Child child({.environment = Environment::of_process()}, {{"sh", "-c", script}, "/bin/sh"});
  pollfd entry{child.pid_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 60000), 1);
  EXPECT_FALSE(child.end().has_value()) << "an end is seen by poll() alone";
  child.poll();
  return child.end().value_or(ExitStatus{-1, -1});
}

TEST(Child, TellsHowItEnded) {
  EXPECT_FALSE(run_shell("exit 0").failed());
  EXPECT_EQ(run_shell("exit 3").describe(), "exited with code 3");
  EXPECT_EQ(run_shell("exit 3").exit_code(), 3);
  EXPECT_EQ(run_shell("kill -TERM $$").describe(), "was ended by signal 15 (SIGTERM)");
  EXPECT_EQ(run_shell("kill -KILL $$").exit_code(), 137);
}

TEST(Child, EndsWithItsOwner) {
  std::optional<testing::Watched> watched;
  {
    Child child({.environment = Environment::of_process()}, {{"sleep", "1000"}, "/bin/sleep"});
    watched.emplace(child.pid());
    child.poll();
    EXPECT_FALSE(child.end().has_value());
  }
  EXPECT_TRUE(watched->ends());
}

TEST(Child, WhatCannotBeExecutedIsMU034) {
  testing::Folder folder;
  auto path = folder.write("noise", "\x01\x02", 0755);
  try {
    Child child({.rank = 7}, {{path}, path});
    FAIL() << "noise was executed";
  } catch (const LaunchError& error) {
    EXPECT_EQ(error.id(), "MU034");
    EXPECT_NE(std::string(error.what()).find("rank 7"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("Exec format error"), std::string::npos);
  }
}

TEST(Child, ProgramsAreFoundAsAShellFindsThem) {
  testing::Folder folder;
  auto program = folder.write("prog", "#!/bin/sh\n", 0755), text = folder.write("text", "", 0644);
  Environment variables{{"PATH", "/nowhere:" + folder.path()}};
  EXPECT_EQ(find_program("prog", variables), program);
  EXPECT_EQ(find_program(program, {}), program);
  for (auto wrong :
       {std::string("text"), text, folder.path(), folder.path() + "/none", std::string("none"), std::string()}) {
    try {
      find_program(wrong, variables);
      ADD_FAILURE() << "'" << wrong << "' was found";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU031");
    }
  }
}

}  // namespace
}  // namespace muster::launcher
