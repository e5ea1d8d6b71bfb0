#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>

#include <deque>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/descriptor.h"
#include "cluster/listening_socket.h"
#include "launcher/process.h"

// The launchers of several nodes, all of them on this host.
namespace muster::launcher::testing {
namespace {

using Words = std::vector<std::string>;

/// Ranks that wait for ever in the first start, and are done at once in the next.
constexpr const char* kWaitsOnce =
    "echo round $MUSTER_RESTART_COUNT rank $RANK of $WORLD_SIZE pid $$; "
    "if test $MUSTER_RESTART_COUNT = 0; then exec sleep 1000; fi";

class SeveralNodes : public ::testing::Test {
 protected:
  Words words(const std::string& nodes, int node_rank, const Words& options, const Words& program) const {
    Words all{
        "--nodes", nodes,       "--node-rank", std::to_string(node_rank), "--main-address", "127.0.0.1",  "--main-port",
        port_,     "--devices", "1",           "--secret-file",           secret_,          "--no-prefix"};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), program.begin(), program.end());
    return muster_run(all);
  }
  /// The launcher of a node.
  Process& start(const std::string& nodes, int node_rank, const Words& options, const std::string& script) {
    return launchers_.emplace_back(words(nodes, node_rank, options, {"sh", "-c", script}));
  }
  Process& node(std::size_t i) { return launchers_.at(i); }

  Folder folder_;
  std::deque<Process> launchers_;
  std::string port_ = std::to_string(cluster::ListeningSocket(0, "127.0.0.1").port());
  std::string secret_ = folder_.write("secret", std::string(32, 's'), 0600);
};

int pid_of(const std::string& line) { return std::stoi(line.substr(line.find(" pid ") + 5)); }

bool says(const Process& process, const std::string& words) { return process.error().find(words) != std::string::npos; }

TEST_F(SeveralNodes, AFailureOnOneStartsTheRanksOfAllAgain) {
  const auto there = folder_.path() + "/there";
  for (int rank : {1, 0})
    start("2", rank, {"--max-restarts", "3"},
          "echo $MUSTER_RESTART_COUNT: $RANK of $WORLD_SIZE, node $GROUP_RANK of $GROUP_WORLD_SIZE; echo $MUSTER_JOB "
          "$MASTER_ADDR $MASTER_PORT $MUSTER_JOB_START; if test $RANK = 0; then echo > " +
              there + "; fi; while ! test -e " + there +
              "; do sleep 0.01; done; test $RANK$MUSTER_RESTART_COUNT != 10");
  for (auto& process : launchers_) EXPECT_EQ(process.wait(), 0) << process.error();
  ASSERT_EQ(node(0).out_lines().size(), 4u) << node(0).out();
  ASSERT_EQ(node(1).out_lines().size(), 4u) << node(1).out();
  for (std::size_t round : {0, 1}) {
    const auto number = std::to_string(round);
    EXPECT_EQ(node(0).out_lines()[2 * round], number + ": 1 of 2, node 1 of 2");
    EXPECT_EQ(node(1).out_lines()[2 * round], number + ": 0 of 2, node 0 of 2");
    EXPECT_EQ(node(0).out_lines()[2 * round + 1], node(1).out_lines()[2 * round + 1]) << "they have two rendezvous";
  }
  EXPECT_NE(node(0).out_lines()[1], node(0).out_lines()[3]) << "a rendezvous came again";
  EXPECT_TRUE(says(node(0), "muster: MU035: rank 1 on node 1 exited with code 1"));
  for (auto& process : launchers_) {
    EXPECT_TRUE(says(process, "all ranks are started again (restart 1 of 3)")) << process.error();
    EXPECT_EQ(times(process.error(), "muster: the job failed 1 time:\n"), 1) << process.error();
    EXPECT_TRUE(says(process, "): MU035: rank 1 exited with code 1")) << process.error();
  }
}

TEST_F(SeveralNodes, RanksThatStillRunAreEndedAtOnce) {
  const auto script = std::string(kWaitsOnce);
  for (int rank : {0, 1}) start("2", rank, {"--max-restarts", "1"}, script);
  const Watched other(pid_of(node(0).line_with("round 0 rank 0 of 2")));
  kill(pid_of(node(1).line_with("round 0 rank 1 of 2")), SIGKILL);
  EXPECT_TRUE(other.ends());
  for (auto& process : launchers_) EXPECT_EQ(process.wait(), 0) << process.error();
  EXPECT_TRUE(says(node(0), "MU035: rank 1 was ended by signal 9 (SIGKILL)")) << node(0).error();
  EXPECT_TRUE(says(node(0), "; all ranks are ended\n")) << node(0).error();
}

TEST_F(SeveralNodes, ALostNodeLeavesASmallerWorld) {
  const Words options{"--max-restarts", "3", "--last-call-timeout", "3s"};
  for (int rank : {0, 1, 2}) start("1:3", rank, options, kWaitsOnce);
  std::vector<Watched> ranks;
  for (auto& process : launchers_) ranks.emplace_back(pid_of(process.line_with(" of 3 pid ")));
  node(1).signal(SIGKILL);
  for (const auto& rank : ranks) EXPECT_TRUE(rank.ends());
  for (std::size_t i : {0, 2}) {
    EXPECT_EQ(node(i).wait(), 0) << node(i).error();
    EXPECT_NE(node(i).out().find("round 1 rank " + std::to_string(i / 2) + " of 2"), std::string::npos);
    EXPECT_EQ(times(node(i).error(), "MU516: the node is lost: its launcher closed the connection, or was killed"), 2)
        << "once when it happened, and once at the end\n"
        << node(i).error();
  }
}

TEST_F(SeveralNodes, ALauncherThatHangsIsLost) {
  const Words options{"--max-restarts", "3", "--heartbeat-timeout", "3s", "--last-call-timeout", "3s"};
  for (int rank : {0, 1}) start("1:2", rank, options, kWaitsOnce);
  node(0).line_with("rank 0 of 2");
  const Watched rank(pid_of(node(1).line_with("rank 1 of 2")));
  node(1).signal(SIGSTOP);
  EXPECT_EQ(node(0).wait(), 0) << node(0).error();
  EXPECT_NE(node(0).out().find("round 1 rank 0 of 1"), std::string::npos);
  EXPECT_TRUE(says(node(0), "its launcher gave no sign of life for 3.0 s")) << node(0).error();
  node(1).signal(SIGCONT);
  EXPECT_EQ(node(1).wait(), 2) << node(1).error();
  EXPECT_TRUE(says(node(1), "muster: MU516: this node is lost to the job")) << node(1).error();
  EXPECT_TRUE(rank.ends());
}

TEST_F(SeveralNodes, AReplacementTakesPartInTheNextRound) {
  for (int rank : {0, 1}) start("2", rank, {"--max-restarts", "3"}, kWaitsOnce);
  node(0).line_with("rank 0 of 2");
  node(1).line_with("rank 1 of 2");
  start("2", 1, {"--max-restarts", "3"}, kWaitsOnce);
  node(1).signal(SIGKILL);
  for (std::size_t i : {0, 2}) {
    EXPECT_EQ(node(i).wait(), 0) << node(i).error();
    EXPECT_NE(node(i).out().find("round 1 rank " + std::to_string(i / 2) + " of 2"), std::string::npos);
  }
}

TEST_F(SeveralNodes, TheEndOfNodeZeroEndsTheJob) {
  for (int rank : {0, 1}) start("2", rank, {"--max-restarts", "3"}, kWaitsOnce);
  const Watched first(pid_of(node(0).line_with("rank 0 of 2"))), other(pid_of(node(1).line_with("rank 1 of 2")));
  node(0).signal(SIGKILL);
  EXPECT_EQ(node(1).wait(), 2);
  EXPECT_TRUE(says(node(1), "muster: MU515: the launcher of node 0 at 127.0.0.1:" + port_)) << node(1).error();
  EXPECT_FALSE(says(node(1), "again (restart")) << node(1).error();
  EXPECT_TRUE(first.ends());
  EXPECT_TRUE(other.ends());
}

TEST_F(SeveralNodes, TheFirstNodeIsThereOnce) {
  for (int rank : {0, 1}) start("2", rank, {"--max-restarts", "3"}, kWaitsOnce);
  EXPECT_FALSE(node(0).line_with("rank 0 of 2").empty());
  Process second(words("2", 0, {"--max-restarts", "3"}, {"true"}));
  EXPECT_EQ(second.wait(), 2);
  EXPECT_TRUE(says(second, "MU033")) << second.error();
  node(0).signal(SIGINT);
  EXPECT_EQ(node(0).wait(), 130);
}

TEST_F(SeveralNodes, TooFewNodesEndTheJob) {
  start("2:3", 0, {"--join-timeout", "200ms"}, "true");
  EXPECT_EQ(node(0).wait(), 2);
  EXPECT_TRUE(says(node(0), "muster: MU514: 1 node is here after 0.2 s, but at least 2 are wanted")) << node(0).error();
  start("2:3", 1, {"--join-timeout", "200ms"}, "true");
  EXPECT_EQ(node(1).wait(), 2);
  EXPECT_TRUE(says(
      node(1), "muster: MU511: the launcher of node 0 was not reached at 127.0.0.1:" + port_ + ": Connection refused"))
      << node(1).error();
}

TEST_F(SeveralNodes, AnotherSecretIsRefusedAtBothEnds) {
  start("2", 0, {"--max-restarts", "1"}, "true");
  const auto right = secret_;
  secret_ = folder_.write("other", std::string(32, 'o'), 0600);
  start("2", 1, {"--max-restarts", "1"}, "true");
  EXPECT_EQ(node(1).wait(), 2);
  EXPECT_TRUE(says(node(1), "MU512: the launcher at 127.0.0.1:" + port_ + " has another secret")) << node(1).error();
  secret_ = right;
  start("2", 1, {"--max-restarts", "1"}, "true");
  for (std::size_t i : {0, 2}) EXPECT_EQ(node(i).wait(), 0) << node(i).error();
  EXPECT_TRUE(says(node(0), "a process at 127.0.0.1 that connected was turned away: it has another secret"))
      << node(0).error();
}

TEST_F(SeveralNodes, AnotherCommandIsRefusedByName) {
  start("2", 0, {"--max-restarts", "1"}, "true");
  start("2", 1, {"--max-restarts", "1"}, "exit 0");
  EXPECT_EQ(node(1).wait(), 2);
  EXPECT_TRUE(says(node(1),
                   "MU513: node 0 refuses this launcher: the program with its arguments is sh -c exit 0 here "
                   "and sh -c true on node 0"))
      << node(1).error();
  start("2", 1, {"--max-restarts", "1"}, "true");
  for (std::size_t i : {0, 2}) EXPECT_EQ(node(i).wait(), 0) << node(i).error();
}

TEST_F(SeveralNodes, OneWithoutRestartsBesideOthersIsToldSoAtOnce) {
  start("2", 1, {}, "echo pid $$; exec sleep 30");
  const auto line = node(0).line_with("pid ");
  ASSERT_FALSE(line.empty()) << node(0).error();
  const Watched rank(std::stoi(line.substr(4)));
  start("2", 0, {"--max-restarts", "1"}, "true");
  EXPECT_EQ(node(0).wait(), 2);
  EXPECT_TRUE(says(node(0), "muster: MU513: the launcher of node 0 at 127.0.0.1:" + port_ +
                                " holds a rendezvous of launchers, since it has --max-restarts"))
      << node(0).error();
  EXPECT_TRUE(rank.ends());
  start("2", 1, {"--max-restarts", "1"}, "true");
  for (std::size_t i : {1, 2}) EXPECT_EQ(node(i).wait(), 0) << node(i).error();
}

TEST_F(SeveralNodes, OneWithoutRestartsTakesNothingElseForARendezvous) {
  start("2", 1, {}, "sleep 0.1");
  EXPECT_EQ(node(0).wait(), 0) << "nothing listens there\n" << node(0).error();
  const cluster::ListeningSocket silent(std::stoi(port_), "127.0.0.1");
  start("2", 1, {}, "sleep 0.1");
  EXPECT_EQ(node(1).wait(), 0) << "a store says nothing\n" << node(1).error();
}

TEST_F(SeveralNodes, WithoutASecretNothingStarts) {
  for (const Words& options : {Words{"--nodes", "2", "--max-restarts", "1"}, {"--nodes", "1:2"}}) {
    Words all = options;
    all.insert(all.end(), {"--main-address", "127.0.0.1", "--devices", "1", "true"});
    Process process(muster_run(all));
    EXPECT_EQ(process.wait(), 2);
    EXPECT_TRUE(says(process, "MU510")) << process.error();
  }
}

TEST_F(SeveralNodes, WrongNumbersAreRefused) {
  for (const Words& options : {Words{"--nodes", "2:1"},
                               {"--nodes", "0:2"},
                               {"--nodes", "1:2", "--join-timeout", "0s"},
                               {"--nodes", "1:2", "--heartbeat-timeout", "0s"}}) {
    Words all = options;
    all.insert(all.end(), {"--main-address", "127.0.0.1", "--secret-file", secret_, "--devices", "1", "true"});
    Process process(muster_run(all));
    EXPECT_EQ(process.wait(), 2);
    EXPECT_TRUE(says(process, "MU036")) << process.error();
  }
  Process process(muster_run({"--nodes", "1:x", "true"}));
  EXPECT_EQ(process.wait(), 2);
  EXPECT_TRUE(says(process, "MU002: flag --nodes: option 'nodes' is '1:x', but a number of nodes")) << process.error();
}

TEST_F(SeveralNodes, AStrangerDisturbsNobody) {
  start("2", 0, {"--max-restarts", "1"}, "true");
  sockaddr_in address{AF_INET, htons(static_cast<uint16_t>(std::stoi(port_))), {htonl(INADDR_LOOPBACK)}, {}};
  Descriptor stranger(socket(AF_INET, SOCK_STREAM, 0));
  while (connect(stranger.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    stranger = Descriptor(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_TRUE(stranger);
  }
  const std::string words(1000, 'x');
  send(stranger.get(), words.data(), words.size(), MSG_NOSIGNAL);
  stranger.close();
  start("2", 1, {"--max-restarts", "1"}, "true");
  for (auto& process : launchers_) EXPECT_EQ(process.wait(), 0) << process.error();
  EXPECT_TRUE(says(node(0), "it is not a launcher of this job")) << node(0).error();
}

TEST_F(SeveralNodes, WhatListensThereMayBeNoLauncher) {
  const cluster::ListeningSocket silent(0, "127.0.0.1");
  port_ = std::to_string(silent.port());
  start("2", 1, {"--max-restarts", "1", "--heartbeat-timeout", "200ms"}, "true");
  EXPECT_EQ(node(0).wait(), 2);
  EXPECT_TRUE(says(node(0), "MU511: what listens at 127.0.0.1:" + port_ + " is not the launcher of node 0"))
      << node(0).error();
}

class SeveralNodesSignal : public SeveralNodes, public ::testing::WithParamInterface<int> {};

TEST_P(SeveralNodesSignal, AtNodeZeroEndsTheJobOnAll) {
  for (int rank : {0, 1}) start("2", rank, {"--max-restarts", "3"}, kWaitsOnce);
  for (auto& process : launchers_) EXPECT_FALSE(process.line_with("round 0 rank ").empty());
  node(0).signal(GetParam());
  for (auto& process : launchers_) {
    EXPECT_EQ(process.wait(), 128 + GetParam()) << process.error();
    EXPECT_FALSE(says(process, "again (restart")) << process.error();
  }
}

TEST_P(SeveralNodesSignal, AtAnotherNodeTakesThatOneAway) {
  const Words options{"--max-restarts", "3", "--last-call-timeout", "3s"};
  for (int rank : {0, 1}) start("1:2", rank, options, kWaitsOnce);
  for (auto& process : launchers_) EXPECT_FALSE(process.line_with("round 0 rank ").empty());
  node(1).signal(GetParam());
  EXPECT_EQ(node(1).wait(), 128 + GetParam());
  EXPECT_EQ(node(0).wait(), 0) << node(0).error();
  EXPECT_NE(node(0).out().find("round 1 rank 0 of 1"), std::string::npos);
  EXPECT_TRUE(says(node(0), "its launcher was stopped by signal " + std::to_string(GetParam()))) << node(0).error();
}

INSTANTIATE_TEST_SUITE_P(Signals, SeveralNodesSignal, ::testing::Values(SIGINT, SIGTERM));

/// As a scheduler does: node 0's request to stop then reaches the other node a second time.
TEST_F(SeveralNodes, AStopOfAllLaunchersAtOnceIsOneRequest) {
  for (int rank : {0, 1})
    start("2", rank, {"--max-restarts", "3"},
          "trap 'sleep 0.3; echo saved; exit 0' TERM; echo round 0 rank $RANK; while :; do sleep 0.05; done");
  for (auto& process : launchers_) EXPECT_FALSE(process.line_with("round 0 rank ").empty());
  for (auto& process : launchers_) process.signal(SIGTERM);
  for (auto& process : launchers_) {
    EXPECT_EQ(process.wait(), 0) << process.error();
    EXPECT_NE(process.out().find("saved"), std::string::npos) << process.error();
  }
}

TEST_F(SeveralNodes, WhatANodeSaysAfterItGaveUpNodeZeroIsNoEndOfTheRound) {
  const Words options{"--max-restarts", "1", "--heartbeat-timeout", "1s", "--join-timeout", "5s"};
  for (int rank : {0, 1}) start("2", rank, options, "echo round 0 rank $RANK; exec sleep 1000");
  for (auto& process : launchers_) EXPECT_FALSE(process.line_with("round 0 rank ").empty());
  node(0).signal(SIGSTOP);
  EXPECT_EQ(node(1).wait(), 2);
  node(0).signal(SIGCONT);
  EXPECT_EQ(node(0).wait(), 2) << node(0).error();
  EXPECT_TRUE(says(node(0), "MU516")) << node(0).error();
}

TEST_F(SeveralNodes, FailingAtOnceEachTimeEndsOnAll) {
  for (int rank : {0, 1}) start("2", rank, {"--max-restarts", "50"}, "exit $(($RANK * 7))");
  for (auto& process : launchers_) {
    EXPECT_EQ(process.wait(), 7);
    EXPECT_EQ(times(process.error(), "all ranks are started again"), 3) << process.error();
    EXPECT_TRUE(says(process, "muster: MU471: the job is not restarted again")) << process.error();
  }
}

TEST_F(SeveralNodes, OneMayBeginAloneAndSayWhoItIs) {
  start("1:4", 0, {"--last-call-timeout", "0s"}, "echo $WORLD_SIZE $GROUP_WORLD_SIZE $MASTER_ADDR");
  EXPECT_EQ(node(0).wait(), 0) << node(0).error();
  EXPECT_EQ(node(0).out(), "1 1 127.0.0.1\n");
}

TEST_F(SeveralNodes, ManyRoundsLeaveNothingBehind) {
  Folder temporary;
  Process::Setup setup;
  setup.environment = {"TMPDIR=" + temporary.path()};
  const Words program{rank_program(), "round", "12"};
  for (int rank : {0, 1}) launchers_.emplace_back(words("2", rank, {"--max-restarts", "12"}, program), setup);
  std::vector<std::multiset<std::string>> before;
  int victim = 0;
  for (auto& process : launchers_) {
    const auto line = process.line_with("round 0 rank ");
    ASSERT_FALSE(line.empty()) << process.error();
    victim = pid_of(line);
    before.push_back(descriptors_of(process.pid()));
  }
  kill(victim, SIGKILL);
  for (auto& process : launchers_) ASSERT_FALSE(process.line_with("round 12 rank ").empty()) << process.error();
  for (std::size_t i : {0, 1}) EXPECT_EQ(descriptors_of(node(i).pid()), before[i]);
  node(0).signal(SIGTERM);
  for (auto& process : launchers_) {
    EXPECT_EQ(process.wait(), 143) << process.error();
    EXPECT_TRUE(says(process, "(restart 12 of 12)")) << process.error();
  }
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
  EXPECT_NO_THROW(cluster::ListeningSocket(std::stoi(port_), "127.0.0.1"));
}

}  // namespace
}  // namespace muster::launcher::testing
