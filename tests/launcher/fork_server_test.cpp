#include "launcher/fork_server.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/variables.h"
#include "launcher/fork_protocol.h"
#include "launcher/process.h"

namespace muster::launcher::testing {
namespace {

using Lines = std::vector<std::string>;

/// The program whose ranks say how they were started, linked with Muster's static libraries, or with its shared ones.
class ForkServer : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string program() { return std::string(MUSTER_BINARY_DIR "/tests/") + GetParam(); }

  /// `muster run` with these flags, the debug log in its output.
  static Lines run(Lines arguments) {
    std::string command = "exec";
    for (const auto& word : muster_run(std::move(arguments))) command += " '" + word + "'";
    return {"sh", "-c", "MUSTER_LOG=debug " + command + " 2>&1"};
  }

  /// How often the ranks of a job of two say that they were `started`, constructed as themselves and without the token.
  static int count(const std::string& out, const std::string& started, const std::string& round = "0") {
    int found = 0;
    for (const char* rank : {"0", "1"})
      found += times(out, std::string("] rank ") + rank + " " + started + ", constructed as " + rank + ", round " +
                              round + ", server -");
    return found;
  }

  static int pid_in(const std::string& line, const std::string& words) {
    const auto at = line.find(words);
    return at == std::string::npos ? 0 : std::stoi(line.substr(at + words.size()));
  }

  static void expect_spawned(const std::string& at_load, const std::string& reason) {
    Process::Setup setup;
    setup.environment = {"MUSTER_TEST_AT_LOAD=" + at_load};
    Process process(run({"--devices", "2", program(), "how"}), setup);
    EXPECT_EQ(process.wait(), at_load == "end" ? 3 : 0);
    EXPECT_NE(process.out().find(reason), std::string::npos) << process.out();
    EXPECT_EQ(count(process.out(), "spawned"), at_load == "end" ? 0 : 2) << process.out();
    EXPECT_EQ(process.out().find(" forked, "), std::string::npos) << process.out();
  }
};

TEST_P(ForkServer, RanksAreForkedUnlessSwitchedOff) {
  Process forked(run({"--devices", "2", program(), "how"}));
  EXPECT_EQ(forked.wait(), 0);
  EXPECT_EQ(count(forked.out(), "forked"), 2) << forked.out();
  for (const auto& off : {"MUSTER_FORK_RANKS=false", "MUSTER_FORK_RANKS=0"}) {
    Process::Setup setup;
    setup.environment = {off};
    Process spawned(run({"--devices", "2", program(), "how"}), setup);
    EXPECT_EQ(spawned.wait(), 0);
    EXPECT_EQ(count(spawned.out(), "spawned"), 2) << spawned.out();
  }
}

TEST_P(ForkServer, AForkedRankInheritsWhatASpawnedOneDoes) {
  const auto state = [](const char* flag) {
    Process process(muster_run({"--devices", "3", "--precision", "bf16-mixed", flag, program(), "state", "a b"}));
    EXPECT_EQ(process.wait(), 0);
    EXPECT_EQ(process.error(), "");
    auto lines = process.out_lines();
    std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a[1] < b[1]; });
#if defined(__SANITIZE_THREAD__)  // in a forked process its thread and that thread's signal begin before main
    std::erase_if(lines, [](const auto& line) {
      return line.find("SigCgt:") != line.npos || line.find("Threads:") != line.npos;
    });
#endif
    return lines;
  };
  const auto forked = state("--fork-ranks"), spawned = state("--no-fork-ranks");
  EXPECT_GT(forked.size(), 60u);
  EXPECT_EQ(forked, spawned);
}

TEST_P(ForkServer, ARestartForksAgain) {
  Process process(run({"--devices", "2", "--max-restarts", "1", program(), "fail_once"}));
  EXPECT_EQ(process.wait(), 0);
  // The first failure ends the other rank, perhaps before it has said anything.
  EXPECT_GE(count(process.out(), "forked", "0"), 1) << process.out();
  EXPECT_EQ(count(process.out(), "forked", "1"), 2) << process.out();
  EXPECT_EQ(process.out().find(" spawned, "), std::string::npos) << process.out();
  EXPECT_EQ(times(process.out(), "ranks are forked from process"), 1) << "it was loaded again\n" << process.out();
}

TEST_P(ForkServer, OneRankIsForkedIfItMayBeStartedAgain) {
  Process once(run({"--devices", "1", program(), "how"}));
  EXPECT_EQ(once.wait(), 0);
  EXPECT_NE(once.out().find("rank 0 spawned"), std::string::npos) << once.out();
  Process again(run({"--devices", "1", "--max-restarts", "1", program(), "how"}));
  EXPECT_EQ(again.wait(), 0);
  EXPECT_NE(again.out().find("rank 0 forked"), std::string::npos) << again.out();
}

TEST_P(ForkServer, WhatCannotBeCopiedIsSpawned) {
  expect_spawned("thread", "one of its libraries has started a thread");
  expect_spawned("file", "one of its libraries has opened /dev/zero");
  expect_spawned("process", "one of its libraries has started a process");
  expect_spawned("end", "it has ended");
}

TEST_P(ForkServer, WhatLibrariesPrintAtLoadIsShownOnce) {
  for (const auto& how : {"MUSTER_TEST_AT_LOAD=print", "MUSTER_TEST_AT_LOAD=much"}) {
    Process::Setup setup;
    setup.environment = {how};
    Process process(run({"--devices", "2", program(), "how"}), setup);
    EXPECT_EQ(process.wait(), 0);
    EXPECT_EQ(count(process.out(), "forked"), 2) << process.out();
    EXPECT_EQ(times(process.out(), "[0] loaded\n"), 1) << process.out();
    EXPECT_EQ(times(process.out(), "loaded\n"), 1) << process.out();
  }
}

TEST_P(ForkServer, AWrapperIsSpawnedAndItsProgramIsOrdinary) {
  Process process(run({"--devices", "2", "sh", "-c", program() + " how; true"}));
  EXPECT_EQ(process.wait(), 0);
  EXPECT_EQ(count(process.out(), "spawned"), 2) << process.out();
}

TEST_P(ForkServer, WhatARankStartsIsOrdinary) {
  Process process(run({"--devices", "2", program(), "child"}));
  EXPECT_EQ(process.wait(), 0);
  EXPECT_EQ(count(process.out(), "forked"), 2) << process.out();
  EXPECT_EQ(count(process.out(), "spawned"), 2) << process.out();
}

TEST_P(ForkServer, ItsDeathEndsNoRankAndARestartSpawns) {
  Process process(run({"--devices", "2", "--max-restarts", "1", program(), "wait"}));
  const int server = pid_in(process.line_with("ranks are forked from process "), "process ");
  const Lines lines{process.line_with(" forked, "), process.line_with(" forked, ")};
  const auto& second = lines[0].find("rank 1") == std::string::npos ? lines[1] : lines[0];
  const int victim = pid_in(second, "pid ");
  ASSERT_TRUE(server > 0 && victim > 0) << process.out();
  const Watched watched(server);
  kill(server, SIGKILL);
  EXPECT_TRUE(watched.ends());
  kill(victim, SIGKILL);
  for (int i = 0; i < 2; ++i) EXPECT_NE(process.line_with(", round 1, ").find("spawned"), std::string::npos);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 143);
  EXPECT_EQ(times(process.out(), "MU035: rank 1 was ended by signal 9"), 2) << process.out();
  EXPECT_EQ(process.out().find("MU035: rank 0"), std::string::npos) << "a rank died with the fork server";
}

TEST_P(ForkServer, OneThatDoesNotAnswerDelaysNoStop) {
  for (const int number : {SIGINT, SIGTERM}) {
    Process process(run({"--devices", "2", "--max-restarts", "1", program(), "wait"}));
    const int server = pid_in(process.line_with("ranks are forked from process "), "process ");
    const int victim = pid_in(process.line_with(" forked, "), "pid ");
    ASSERT_TRUE(server > 0 && victim > 0) << process.out();
    const Watched watched(server);
    kill(server, SIGSTOP);
    kill(victim, SIGKILL);
    EXPECT_FALSE(process.line_with(std::to_string(server) + " is asked for 2 ranks").empty()) << process.out();
    process.signal(number);
    EXPECT_EQ(process.wait(), 128 + number);
    EXPECT_NE(process.out().find("a signal came before it had answered"), std::string::npos) << process.out();
    EXPECT_TRUE(watched.ends());
  }
}

TEST_P(ForkServer, DiesWithTheLauncher) {
  Process process(run({"--devices", "2", program(), "wait"}));
  std::vector<Watched> all;
  for (auto words : {"ranks are forked from process ", ", pid ", ", pid "}) {
    const auto line = process.line_with(words);
    ASSERT_FALSE(line.empty()) << process.out();
    all.emplace_back(std::stoi(line.substr(line.find(words) + std::string(words).size())));
  }
  process.signal(SIGKILL);
  for (const auto& one : all) EXPECT_TRUE(one.ends());
}

/// A process with the variable of a fork server and a socket, as if it were the launcher's: how it ended.
struct Called {
  int code = -1;
  std::string error, out;
  std::string reply;  ///< the reason of a refusal

  Called(const std::string& message, const std::string& token, const std::string& before, const std::string& program) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    if (!message.empty()) {
      EXPECT_EQ(send(ends[0], message.data(), message.size(), 0), static_cast<ssize_t>(message.size()));
    }
    const int inherited = dup(ends[1]);
    close(ends[1]);
    Process::Setup setup;
    setup.environment = {std::string(cluster::kForkServer) + "=" + std::to_string(inherited) + ":" + token};
    Process process({"sh", "-c", before + "exec " + program + " how"}, setup);
    close(inherited);
    shutdown(ends[0], SHUT_WR);  // a fork server ends when there is nothing more to do
    code = process.wait();
    error = process.error();
    out = process.out();
    ForkReply given;
    if (recv(ends[0], &given, sizeof given, 0) == static_cast<ssize_t>(sizeof given)) reply = given.reason;
    close(ends[0]);
  }
};

TEST_P(ForkServer, OnlyTheLaunchersOwnProcessBecomesOne) {
  const Called one("abc", "abc", "", program());
  EXPECT_EQ(one.code, 0) << one.error;
  EXPECT_EQ(one.out + one.error, "") << "main ran";
  const Called other("abc", "abc", "true | ( ", program() + " how ); : ");
  EXPECT_EQ(other.code, 0) << other.error;
  EXPECT_NE(other.out.find("server -, pid"), std::string::npos) << "it keeps the variable: " << other.out;
}

TEST_P(ForkServer, WithoutItsTokenItEndsInsteadOfRunningTheProgram) {
  const auto expect = [&](const std::string& message, const std::string& token, const std::string& reason) {
    const Called one(message, token, "", program());
    EXPECT_EQ(one.code, 1);
    EXPECT_EQ(one.out, "") << "main ran";
    EXPECT_EQ(one.reply, reason);
    EXPECT_TRUE(one.error.starts_with("muster: MU525: ") && one.error.ends_with(": " + reason + "\n")) << one.error;
  };
  expect("abc", "abd", "the launcher's first message has another token");
  expect("abc", "", "the launcher's first message has another token");
  expect("abc", "abcd", "the launcher's first message has another token");
  expect("", "abc", "the launcher's first message is missing");
}

INSTANTIATE_TEST_SUITE_P(Libraries, ForkServer, ::testing::Values("launcher_forked", "launcher_forked_shared"),
                         [](const auto& param) {
                           return std::string(param.param).ends_with("shared") ? "shared" : "static";
                         });

}  // namespace
}  // namespace muster::launcher::testing
