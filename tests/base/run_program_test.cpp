#include "base/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include <gtest/gtest.h>

namespace muster {
namespace {

using std::chrono::milliseconds;

constexpr auto kLong = std::chrono::minutes(1);
constexpr milliseconds kShort{50};

CompletedProgram run_script(const std::string& script, milliseconds timeout = kLong) {
  return run_program({"sh", "-c", script}, timeout);
}

TEST(RunProgram, SaysWhatTheProgramSaidAndHowItEnded) {
  const auto good = run_script("echo here; echo there >&2");
  EXPECT_TRUE(good.succeeded());
  EXPECT_EQ(good.output, "here\nthere\n");
  const auto failed = run_script("exit 3");
  EXPECT_FALSE(failed.succeeded());
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_EQ(run_script("kill -TERM $$").signal, SIGTERM);
  EXPECT_EQ(run_script("head -c 3000000 /dev/zero").output.size(), size_t{1} << 20);
}

TEST(RunProgram, AMissingOneIsNoFailedOne) {
  const auto missing = run_program({"no-program-has-this-name"}, kLong);
  EXPECT_TRUE(missing.is_missing);
  EXPECT_EQ(missing.problem, "cannot be started: No such file or directory");
  EXPECT_FALSE(run_script("exit 127").is_missing);
}

TEST(RunProgram, OneThatHangsIsEndedWithWhatItStarted) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // which they inherit
  const auto hung = run_script("sleep 1000 & wait", kShort);
  EXPECT_EQ(hung.problem, "has not answered within 1 s");
  EXPECT_FALSE(hung.succeeded());
  close(ends[1]);
  pollfd end{ends[0], POLLIN, 0};
  char byte = 0;
  ASSERT_EQ(poll(&end, 1, 30'000), 1) << "something of it runs on";
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
  EXPECT_NE(run_script("yes", kShort).problem, "") << "it has said much, and goes on";
}

TEST(RunProgram, ItsEndCountsAndNotThatOfItsStreams) {
  EXPECT_NE(run_script("exec >&- 2>&-; exec sleep 1000", kShort).problem, "");
  const auto ended = run_script("sleep 1000 & echo $!");
  EXPECT_TRUE(ended.succeeded());
  ASSERT_NE(ended.output, "");
  kill(std::stoi(ended.output), SIGKILL);
}

}  // namespace
}  // namespace muster
