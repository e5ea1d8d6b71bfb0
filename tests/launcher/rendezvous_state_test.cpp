#include <gtest/gtest.h>

#include "launcher/rendezvous/rendezvous_server.h"

namespace muster::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A rendezvous whose clock the test moves, and what each node was sent.
class Rounds {
 public:
  explicit Rounds(NodeRange nodes, int max_restarts = 9)
      : config_{.command = "train", .digest = "d", .max_restarts = max_restarts, .nodes = "n", .processes = 2},
        state_(
            {.entry = {.config = config_},
             .options = {.join_timeout = seconds(600), .last_call_timeout = seconds(30), .nodes = nodes}},
            [this](int count) {
              ++prepared;
              return StartRound{.main_address = "alpha", .main_port = 5, .name = "job", .nodes = count};
            },
            now_) {}

  LaunchConfig& config() { return config_; }
  void comes(int id, int node_rank) {
    receive(id, Join{"host" + std::to_string(id), node_rank, config_});
    receive(id, Ready{});
  }
  /// Nodes 0, 1, ... by their number.
  void come(int count) {
    for (int id = 0; id < count; ++id) comes(id, id);
  }
  void receive(int id, const NodeMessage& message) {
    state_.receive(id, message, now_);
    take();
  }
  void loses(int id) {
    state_.lose(id, "its launcher was killed", now_);
    take();
  }
  void passes(milliseconds time) {
    now_ += time;
    state_.advance(now_);
    take();
  }
  /// The ranks of a node have ended, and it is ready for the next round.
  void ends(int id, bool made_steps = true) {
    receive(id, Ended{made_steps});
    receive(id, Ready{});
  }
  /// The last message of this kind to a node; nullptr: none.
  template <class Message>
  const Message* last(int id) const {
    const Message* found = nullptr;
    for (const auto& [to, message] : sent_)
      if (to == id)
        if (const auto* one = std::get_if<Message>(&message)) found = one;
    return found;
  }
  /// "1 of 3, restart 2", or "" if there is no round since forget().
  std::string round(int id) const {
    const auto* one = last<StartRound>(id);
    return one ? std::to_string(one->node_rank) + " of " + std::to_string(one->nodes) + ", restart " +
                     std::to_string(one->restarts)
               : "";
  }
  std::string finish(int id) const {
    const auto* one = last<Finish>(id);
    return one ? std::to_string(one->code) + " " + one->id : "";
  }
  void forget() { sent_.clear(); }
  const RendezvousState& state() const { return state_; }

  int prepared = 0;

 private:
  void take() {
    for (auto& message : state_.take_messages()) sent_.push_back(std::move(message));
  }

  RendezvousState::Time now_{};
  std::vector<std::pair<int, RendezvousMessage>> sent_;
  LaunchConfig config_;
  RendezvousState state_;
};

TEST(RendezvousState, ARoundBeginsOnceTheMostNodesAreThere) {
  Rounds rounds(NodeRange(1, 2));
  rounds.comes(0, 0);
  EXPECT_EQ(rounds.round(0), "");
  rounds.comes(7, 3);
  EXPECT_EQ(rounds.round(0), "0 of 2, restart 0");
  EXPECT_EQ(rounds.round(7), "1 of 2, restart 0");
  EXPECT_EQ(rounds.last<StartRound>(7)->main_port, 5);
  EXPECT_EQ(rounds.prepared, 1);
}

TEST(RendezvousState, OrOnceTheLastCallHasPassedWithTheLeast) {
  Rounds rounds(NodeRange(2, 4));
  rounds.comes(0, 0);
  rounds.passes(seconds(60));
  EXPECT_EQ(rounds.round(0), "") << "one of at least two";
  rounds.comes(1, 1);
  EXPECT_NE(rounds.last<Note>(1)->line.find("2 nodes of at most 4 are here"), std::string::npos);
  rounds.passes(seconds(29));
  rounds.comes(2, 2);
  EXPECT_EQ(rounds.round(0), "");
  rounds.passes(seconds(1));
  for (int id = 0; id < 3; ++id) EXPECT_EQ(rounds.round(id), std::to_string(id) + " of 3, restart 0");
}

TEST(RendezvousState, TheLastCallBeginsAnewOnceTooFewAreThere) {
  Rounds rounds(NodeRange(2, 4));
  rounds.come(2);
  rounds.passes(seconds(29));
  rounds.loses(1);
  rounds.passes(seconds(2));
  rounds.comes(5, 1);
  rounds.passes(seconds(29));
  EXPECT_EQ(rounds.round(0), "");
  rounds.passes(seconds(1));
  EXPECT_EQ(rounds.round(5), "1 of 2, restart 0");
}

TEST(RendezvousState, TooFewNodesEndTheJobAfterTheTimeToJoin) {
  Rounds rounds(3);
  rounds.come(2);
  rounds.passes(seconds(5));
  EXPECT_EQ(rounds.last<Note>(1)->line,
            "2 nodes are here, at least 3 are wanted; the launchers wait for up to 600.0 s");
  rounds.passes(seconds(594));
  EXPECT_FALSE(rounds.state().finished());
  rounds.passes(seconds(1));
  EXPECT_TRUE(rounds.state().finished());
  for (int id : {0, 1}) EXPECT_EQ(rounds.finish(id), "2 MU514");
}

TEST(RendezvousState, AFailedRankEndsTheRoundOnAllNodesAndAllBeginAgain) {
  Rounds rounds(3);
  rounds.come(3);
  rounds.forget();
  rounds.receive(1, Failed{.code = 3, .what = "MU035: rank 2 exited with code 3"});
  EXPECT_EQ(rounds.last<EndRound>(0)->why, "node 1 (host1): MU035: rank 2 exited with code 3");
  EXPECT_NE(rounds.last<EndRound>(2), nullptr);
  EXPECT_EQ(rounds.last<EndRound>(1), nullptr) << "it ends its ranks by itself";
  for (int id : {1, 0, 2}) {
    EXPECT_EQ(rounds.round(0), "") << "ranks of the last round run";
    rounds.ends(id);
  }
  for (int id = 0; id < 3; ++id) {
    EXPECT_EQ(rounds.round(id), std::to_string(id) + " of 3, restart 1");
    EXPECT_EQ(rounds.last<Note>(id)->line, "all ranks are started again (restart 1 of 9)");
  }
}

TEST(RendezvousState, ALostNodeLeavesTheRestASmallerWorldAfterTheLastCall) {
  Rounds rounds(NodeRange(2, 3));
  rounds.come(3);
  rounds.forget();
  rounds.receive(2, Failed{.code = 79, .secondary = true, .what = "lost rank 2"});
  rounds.loses(1);
  EXPECT_EQ(rounds.last<EndRound>(0)->why, "node 2 (host2): lost rank 2");
  for (int id : {0, 2}) rounds.ends(id);
  EXPECT_EQ(rounds.round(0), "") << "another one may take its place";
  rounds.passes(seconds(30));
  EXPECT_EQ(rounds.round(0), "0 of 2, restart 1");
  EXPECT_EQ(rounds.round(2), "1 of 2, restart 1");
  for (int id : {0, 2}) rounds.receive(id, Ended{});
  EXPECT_EQ(rounds.last<Finish>(0)->lines,
            (std::vector<std::string>{"the job failed 1 time:",
                                      "  1. node 1 (host1): MU516: the node is lost: its launcher was killed"}))
      << "the loss is the cause, and not what followed from it";
  EXPECT_EQ(rounds.finish(2), "0 ");
}

TEST(RendezvousState, AReplacementIsTakenAtOnce) {
  Rounds rounds(NodeRange(1, 2));
  rounds.come(2);
  rounds.loses(1);
  rounds.ends(0);
  rounds.forget();
  rounds.comes(8, 1);
  EXPECT_EQ(rounds.round(8), "1 of 2, restart 1");
}

TEST(RendezvousState, WithoutALossNobodyIsWaitedFor) {
  Rounds rounds(NodeRange(1, 4));
  rounds.come(2);
  rounds.passes(seconds(30));
  rounds.forget();
  rounds.receive(0, Failed{.code = 3, .what = "x"});
  for (int id : {0, 1}) rounds.ends(id);
  EXPECT_EQ(rounds.round(1), "1 of 2, restart 1");
}

TEST(RendezvousState, ANodeThatComesLateWaitsForTheNextRound) {
  Rounds rounds(NodeRange(1, 3));
  rounds.come(2);
  rounds.passes(seconds(30));
  rounds.forget();
  rounds.comes(2, 2);
  EXPECT_NE(rounds.last<Note>(2)->line.find("waits for the next one"), std::string::npos);
  EXPECT_EQ(rounds.last<Note>(0)->line, "node 2 (host2) waits for the next round");
  EXPECT_EQ(rounds.last<EndRound>(0), nullptr);
  rounds.passes(seconds(10000));
  rounds.receive(1, Failed{.code = 3, .what = "x"});
  for (int id : {0, 1}) rounds.ends(id);
  EXPECT_EQ(rounds.round(2), "2 of 3, restart 1");
}

TEST(RendezvousState, MoreThanTheMostWaitBehindThoseOfTheLastRound) {
  Rounds rounds(2);
  rounds.come(2);
  rounds.comes(2, 2);
  rounds.forget();
  rounds.receive(1, Failed{.code = 3, .what = "x"});
  for (int id : {0, 1}) rounds.ends(id);
  EXPECT_EQ(rounds.round(1), "1 of 2, restart 1");
  EXPECT_EQ(rounds.round(2), "");
  rounds.loses(1);
  rounds.ends(0);
  EXPECT_EQ(rounds.round(2), "1 of 2, restart 2");
}

TEST(RendezvousState, TheJobEndsOnceAllRanksHaveSucceeded) {
  Rounds rounds(2);
  rounds.come(2);
  rounds.receive(1, Ended{});
  EXPECT_FALSE(rounds.state().finished());
  rounds.receive(0, Ended{});
  for (int id : {0, 1}) EXPECT_EQ(rounds.finish(id), "0 ");
}

TEST(RendezvousState, ANodeThatIsDoneMayGoBeforeTheOthersAre) {
  Rounds rounds(2);
  rounds.come(2);
  rounds.receive(1, Ended{});
  rounds.loses(1);
  EXPECT_EQ(rounds.last<EndRound>(0), nullptr);
  rounds.receive(0, Ended{});
  EXPECT_EQ(rounds.finish(0), "0 ");
}

TEST(RendezvousState, AfterTheLastRestartTheCodeIsThatOfTheCause) {
  Rounds rounds(2, 1);
  rounds.come(2);
  for (int round = 0; round < 2; ++round) {
    rounds.receive(0, Failed{.code = 79, .secondary = true, .what = "it lost rank 2"});
    rounds.receive(1, Failed{.code = 5, .what = "x"});
    for (int id : {0, 1}) rounds.ends(id);
  }
  for (int id : {0, 1}) EXPECT_EQ(rounds.finish(id), "5 ");
  EXPECT_EQ(rounds.last<Finish>(1)->lines.back(), "  2. node 1 (host1): x");
}

TEST(RendezvousState, RoundsThatFailTooSoonWaitLongerAndEnd) {
  Rounds rounds(1);
  rounds.comes(0, 0);
  for (const auto wait : {milliseconds(0), milliseconds(1000), milliseconds(2000)}) {
    rounds.receive(0, Failed{.code = 5, .what = "x"});
    rounds.forget();
    rounds.ends(0, false);
    EXPECT_EQ(rounds.round(0).empty(), wait.count() > 0);
    EXPECT_EQ(rounds.state().due().has_value(), wait.count() > 0);
    rounds.passes(wait);
    EXPECT_NE(rounds.round(0), "");
  }
  rounds.receive(0, Failed{.code = 5, .what = "x"});
  rounds.ends(0, false);
  EXPECT_EQ(rounds.finish(0), "5 ");
}

TEST(RendezvousState, OtherCommandsAreRefusedByName) {
  Rounds rounds(2);
  rounds.comes(0, 0);
  const auto config = rounds.config();
  const auto refusal = [&](auto change, int node_rank = 1) {
    rounds.config() = config;
    change(rounds.config());
    rounds.comes(1, node_rank);
    EXPECT_EQ(rounds.finish(1), "2 MU513");
    const auto* finish = rounds.last<Finish>(1);
    return finish ? finish->lines.front() : "";
  };
  EXPECT_NE(refusal([](LaunchConfig& own) { own.nodes = "1:3"; }).find("--nodes is 1:3 here and n on node 0"),
            std::string::npos);
  EXPECT_NE(refusal([](LaunchConfig& own) { own.processes = 4; }).find("(--devices) is 4 here and 2 on node 0"),
            std::string::npos);
  EXPECT_NE(refusal([](LaunchConfig& own) { own.max_restarts = 1; }).find("--max-restarts is 1 here and 9 on node 0"),
            std::string::npos);
  EXPECT_NE(
      refusal([](LaunchConfig& own) { own.digest = own.command = "test"; }).find("is test here and train on node 0"),
      std::string::npos);
  EXPECT_NE(refusal([](LaunchConfig&) {}, 0).find("its node rank is 0"), std::string::npos);
  EXPECT_EQ(rounds.prepared, 0);
}

TEST(RendezvousState, AStopAtNodeZeroStopsAllAndStartsNobodyAgain) {
  Rounds rounds(2);
  rounds.come(2);
  rounds.receive(0, Stop{15});
  EXPECT_EQ(rounds.last<Stop>(1)->signal, 15);
  EXPECT_EQ(rounds.last<Stop>(0), nullptr);
  rounds.receive(1, Left{"its launcher was stopped by signal 15"});
  EXPECT_FALSE(rounds.state().finished());
  rounds.receive(0, Ended{});
  EXPECT_EQ(rounds.finish(0), "143 ");
}

TEST(RendezvousState, AStopWaitsForNoNodeForEver) {
  Rounds rounds(2);
  rounds.come(2);
  rounds.receive(0, Stop{2});
  rounds.receive(0, Ended{});
  rounds.passes(seconds(39));
  EXPECT_FALSE(rounds.state().finished());
  rounds.passes(seconds(1));
  EXPECT_EQ(rounds.finish(1), "130 ");
}

TEST(RendezvousState, AStopBetweenRoundsEndsTheJobForThoseWhoWait) {
  Rounds rounds(2);
  rounds.comes(0, 0);
  rounds.receive(0, Stop{2});
  EXPECT_EQ(rounds.finish(0), "130 ");
}

TEST(RendezvousState, AnotherNodeThatIsStoppedLeavesTheJob) {
  Rounds rounds(NodeRange(1, 2));
  rounds.come(2);
  rounds.receive(1, Stop{15});
  EXPECT_EQ(rounds.last<EndRound>(0), nullptr) << "its ranks may be saving their state together with others";
  rounds.receive(1, Left{"its launcher was stopped by signal 15"});
  EXPECT_EQ(rounds.last<EndRound>(0)->why, "node 1 (host1): its launcher was stopped by signal 15");
  rounds.ends(0);
  rounds.passes(seconds(30));
  EXPECT_EQ(rounds.round(0), "0 of 1, restart 1");
}

TEST(RendezvousState, AnErrorOfTheFirstLauncherEndsTheJob) {
  Rounds rounds(2);
  rounds.come(2);
  rounds.receive(0, Left{"MU034: rank 0 could not be started"});
  EXPECT_EQ(rounds.finish(1), "2 ");
  EXPECT_EQ(rounds.last<Finish>(1)->lines.front(), "node 0 (host0): MU034: rank 0 could not be started");
}

TEST(RendezvousState, AStrangerSaysNothing) {
  Rounds rounds(1);
  for (const NodeMessage& message :
       {NodeMessage(Ready{}), NodeMessage(Ended{}), NodeMessage(Failed{}), NodeMessage(Left{}), NodeMessage(Stop{9})})
    rounds.receive(4, message);
  rounds.loses(4);
  EXPECT_EQ(rounds.prepared, 0);
  EXPECT_FALSE(rounds.state().finished());
}

}  // namespace
}  // namespace muster::launcher
