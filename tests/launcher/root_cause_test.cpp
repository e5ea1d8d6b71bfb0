#include "launcher/root_cause.h"

#include <gtest/gtest.h>

namespace muster::launcher {
namespace {

using Kind = RootCause::Kind;
using std::chrono::milliseconds;

RankSnapshot runs(int rank) { return {.end = {}, .rank = rank, .reported = {}}; }
RankSnapshot ended(int rank, int code, int signal = 0) {
  return {.end = ExitStatus{code, signal}, .rank = rank, .reported = {}};
}
RankSnapshot lost(RankSnapshot rank, int other, std::int64_t at = 1, std::string reason = "MU052: lost it") {
  rank.reported.lost_at = at;
  rank.reported.lost_rank = other;
  rank.reported.reason = std::move(reason);
  return rank;
}
RankSnapshot by_exception(RankSnapshot rank) {
  rank.reported.left_by_exception = true;
  return rank;
}

/// "failed 1", "silent 1 by 0", or "nothing".
std::string verdict(const std::vector<RankSnapshot>& ranks, WaitedFor waited = WaitedFor::nothing) {
  const auto cause = find_root_cause(ranks, waited);
  if (!cause) return "nothing";
  const char* names[] = {"failed", "elsewhere", "left", "abandoned", "silent"};
  return std::string(names[static_cast<int>(cause->kind)]) + " " + std::to_string(cause->rank) +
         (cause->other < 0 ? "" : " by " + std::to_string(cause->other)) + ", code " +
         std::to_string(cause->end.exit_code());
}

TEST(RootCause, ACrashCountsBeforeACodeAndACodeBeforeAnAbort) {
  const auto abort = ended(0, 0, SIGABRT), code = ended(1, 3), crash = ended(2, 0, SIGSEGV);
  EXPECT_EQ(verdict({abort, code, crash}), "failed 2, code 139");
  EXPECT_EQ(verdict({abort, code, runs(2)}), "failed 1, code 3");
  EXPECT_EQ(verdict({abort, runs(1), runs(2)}), "failed 0, code 134");
  EXPECT_EQ(verdict({runs(0), ended(2, 3), ended(1, 3)}), "failed 1, code 3");
  EXPECT_EQ(verdict({ended(0, 0), runs(1)}, WaitedFor::end), "nothing");
}

TEST(RootCause, ASecondaryFailureWaitsForWhatBecameOfTheRankThatItLost) {
  EXPECT_EQ(verdict({lost(ended(0, 1), 1), runs(1)}), "nothing");
  EXPECT_EQ(verdict({lost(ended(0, 1), 1), ended(1, 7)}), "failed 1, code 7");
  EXPECT_EQ(verdict({lost(ended(0, 0, SIGABRT), 1), ended(1, 0, SIGABRT)}), "failed 1, code 134");
  // Through one that has not ended yet, whatever it waits for.
  EXPECT_EQ(verdict({lost(ended(0, 1), 1), lost(runs(1), 2), runs(2)}), "nothing");
  EXPECT_EQ(verdict({lost(ended(0, 1), 1), lost(runs(1), 2), ended(2, 5)}), "failed 2, code 5");
  EXPECT_EQ(verdict({lost(ended(0, 1), 1), lost(runs(1), 2), runs(2)}, WaitedFor::end), "silent 2 by 1, code 1");
  EXPECT_EQ(verdict({lost(ended(0, 1), 1), runs(1)}, WaitedFor::end), "silent 1 by 0, code 1");
  EXPECT_EQ(verdict({lost(ended(0, 1), 1), by_exception(runs(1))}, WaitedFor::end), "abandoned 1 by 0, code 1");
}

TEST(RootCause, ARankThatClosesItsConnectionsHasLongerToEnd) {
  const auto answer = WaitedFor::answer;
  for (const char* reason : {"MU052: lost it", "MU053: it ended the group"}) {
    EXPECT_EQ(verdict({lost(ended(0, 1), 1, 1, reason), runs(1)}, answer), "nothing");
    EXPECT_EQ(verdict({lost(ended(0, 1), 1, 1, reason), ended(1, 0)}, answer), "left 1 by 0, code 1");
  }
  EXPECT_EQ(verdict({lost(ended(0, 1), 1, 1, "MU051: waited"), by_exception(runs(1))}, answer), "nothing");
  EXPECT_EQ(verdict({lost(ended(0, 1), 1, 1, "MU051: waited"), runs(1)}, answer), "silent 1 by 0, code 1");
  EXPECT_EQ(verdict({lost(ended(0, 1), 1, 1, "MU051: waited"), runs(1)}), "nothing");
}

TEST(RootCause, ARankThatEndedWellIsNamedByTheOneThatLostIt) {
  EXPECT_EQ(verdict({ended(0, 0), lost(ended(1, 0, SIGABRT), 0)}), "left 0 by 1, code 134");
  EXPECT_EQ(verdict({by_exception(ended(0, 0)), lost(ended(1, 1), 0)}), "abandoned 0 by 1, code 1");
}

TEST(RootCause, OfRanksThatLostEachOtherTheFirstToWaitInVainIsRight) {
  EXPECT_EQ(verdict({lost(ended(0, 1), 1, 10, "MU051: waited"), lost(ended(1, 1), 0, 20, "MU051: was ended")}),
            "silent 1 by 0, code 1");
  EXPECT_EQ(verdict({lost(ended(0, 1), 1, 20, "MU051: was ended"), lost(ended(1, 1), 0, 10, "MU051: waited")}),
            "silent 0 by 1, code 1");
  EXPECT_EQ(verdict({lost(ended(0, 1), 1, 10), lost(ended(1, 0, SIGSEGV), 0, 20)}), "failed 1, code 139");
}

TEST(RootCause, ARankOfAnotherNodeIsLeftToThatNodesLauncher) {
  EXPECT_EQ(verdict({lost(ended(2, 1), 0), lost(runs(3), 2)}), "elsewhere 2 by 0, code 1");
  EXPECT_EQ(verdict({lost(ended(2, 1), 0), ended(3, 4)}), "failed 3, code 4");
  const auto cause = find_root_cause({lost(ended(2, 1), 0)}, WaitedFor::nothing);
  EXPECT_EQ(describe(*cause, {2, 2}, nullptr)[0],
            "muster: MU035: rank 2 on node 1 exited with code 1 after 0.0 s, since it had lost rank 0 on node 0; the "
            "launcher "
            "on that node names the root cause, unless that rank ended normally. All ranks of this node are ended.");
}

TEST(RootCause, ARankThatLostAnotherNeedNotHaveFailed) {
  const auto left = *find_root_cause({lost(ended(0, 7), 1), lost(runs(1), 2), ended(2, 0)}, WaitedFor::nothing);
  EXPECT_EQ(headline(left, {}),
            "MU038: rank 2 left main normally while rank 1 still communicated: ranks made different numbers of steps; "
            "use check_trigger(), so that they leave the loop together. rank 0 exited with code 7 after 0.0 s");
  const auto abandoned =
      *find_root_cause({lost(ended(0, 7), 1), lost(ended(1, 0), 2), by_exception(ended(2, 0))}, WaitedFor::nothing);
  EXPECT_NE(headline(abandoned, {}).find("rank 0 exited with code 7"), std::string::npos);
  EXPECT_EQ(verdict({lost(ended(2, 7), 3), lost(runs(3), 1)}), "nothing");
  const auto elsewhere = *find_root_cause({lost(ended(2, 7), 3), lost(runs(3), 1)}, WaitedFor::answer);
  EXPECT_EQ(headline(elsewhere, {2, 2}),
            "MU035: rank 2 on node 1 exited with code 7 after 0.0 s, since rank 3 on node 1 had lost rank 1 on node 0; "
            "the launcher on that node names the root cause, unless that rank ended normally");
}

TEST(RootCause, ALastRankThatAnotherHasLostIsNamed) {
  const auto all_but = [](RankSnapshot last) {
    return std::vector{lost(ended(0, 0), 2, 1, "MU051: waited"), ended(1, 0), std::move(last)};
  };
  EXPECT_EQ(find_root_cause(all_but(runs(2)), WaitedFor::end), std::nullopt);
  EXPECT_EQ(describe_last_rank(all_but(runs(2)), {}),
            "muster: rank 2 still runs; the other ranks have ended, rank 0 after it had lost that rank (MU051: "
            "waited). If it hangs, end the job by Ctrl-C.");
  EXPECT_EQ(describe_last_rank(all_but(ended(2, 0)), {}), "");
  EXPECT_EQ(describe_last_rank({lost(ended(0, 0), 2), runs(1), runs(2)}, {}), "");
  EXPECT_EQ(describe_last_rank({ended(0, 0), runs(1)}, {}), "");
}

TEST(RootCause, AStoppedRankIsTheCauseOnceNoOtherRunsAndOneHasLostIt) {
  const auto stopped = [](int rank) {
    auto made = runs(rank);
    made.is_stopped = true;
    return made;
  };
  const auto zero = lost(ended(0, 0), 2, 1, "MU051: waited");
  for (const auto& ranks : {std::vector{zero, ended(1, 0), stopped(2)}, std::vector{zero, stopped(1), stopped(2)}}) {
    const auto cause = find_stopped_rank(ranks);
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::stopped);
    EXPECT_EQ(cause->rank, 2);
    EXPECT_EQ(cause->other, 0);
    EXPECT_EQ(cause->end.exit_code(), 137);
  }
  for (const auto& ranks :
       {std::vector{zero, ended(1, 0), runs(2)}, std::vector{zero, runs(1), stopped(2)},
        std::vector{ended(0, 0), ended(1, 0), stopped(2)}, std::vector{zero, ended(1, 0), ended(2, 0)},
        std::vector{zero, stopped(1), ended(2, 0)}, std::vector{lost(stopped(0), 2), stopped(1), stopped(2)}})
    EXPECT_FALSE(find_stopped_rank(ranks));
}

TEST(RootCause, TheExitStatusIsThatOfTheRankWhichLostTheCause) {
  EXPECT_EQ(verdict({lost(ended(0, 7), 1), lost(ended(1, 9), 2), ended(2, 0)}), "left 2 by 1, code 9");
  EXPECT_EQ(verdict({lost(ended(2, 7), 3), lost(ended(3, 9), 1)}), "elsewhere 3 by 1, code 9");
}

TEST(RootCause, AnErrorThatNobodyCaughtIsToldOnce) {
  auto zero = ended(0, 79), one = ended(1, 79), two = ended(2, 79);
  zero.error_message = two.error_message = "MU170: unknown";
  one.error_message = "MU101: other\nline";
  auto cause = *find_root_cause({zero, one, two}, WaitedFor::nothing);
  std::deque<std::string> none;
  EXPECT_EQ(describe(cause, {}, &none),
            (std::vector<std::string>{"muster: MU035: rank 0 exited with code 79 (an error that nobody caught) after "
                                      "0.0 s; all other ranks are ended.",
                                      "muster:   MU170: unknown"}));
  EXPECT_EQ(other_errors({zero, one, two}, cause),
            (std::vector<std::string>{"muster: rank 1 ended by an error: MU101: other\nline"}));
  EXPECT_EQ(other_errors({zero, one, two}, std::nullopt).size(), 2u);
  // As an abort: an exit code of the program's own counts before.
  EXPECT_EQ(verdict({zero, ended(1, 3)}), "failed 1, code 3");
}

TEST(RootCause, IsToldInPlainWords) {
  std::deque<std::string> last{"one", "two"};
  auto code = *find_root_cause({ended(1, 3)}, WaitedFor::nothing),
       crash = *find_root_cause({ended(4, 0, SIGSEGV)}, WaitedFor::nothing);
  code.after = milliseconds(1240);
  auto lines = describe(code, {}, &last);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0],
            "muster: MU035: rank 1 exited with code 3 after 1.2 s; all other ranks are ended. Its last lines:");
  EXPECT_EQ(lines[2], "muster:   two");
  code.steps = 7;
  EXPECT_EQ(describe(code, {2, 1}, nullptr)[0],
            "muster: MU035: rank 1 on node 1 exited with code 3 after 1.2 s, in step 8; all other ranks are ended.");
  last.clear();
  EXPECT_EQ(describe(crash, {}, &last)[0],
            "muster: MU035: rank 4 was ended by signal 11 (SIGSEGV) after 0.0 s; all other ranks are ended. It had "
            "written nothing.");
  EXPECT_EQ(describe(crash, {}, nullptr)[0],
            "muster: MU035: rank 4 was ended by signal 11 (SIGSEGV) after 0.0 s; all other ranks are ended.");
}

TEST(RootCause, DifferentNumbersOfStepsAreCalledThat) {
  auto zero = ended(0, 0), one = lost(ended(1, 0, SIGABRT), 0);
  zero.reported.steps = 5;
  one.reported.steps = 8;
  const auto lines = describe(*find_root_cause({zero, one}, WaitedFor::nothing), {}, nullptr);
  EXPECT_EQ(lines[0],
            "muster: MU038: rank 0 left main normally after 5 steps while rank 1 was in step 9: ranks made different "
            "numbers of steps; use "
            "check_trigger(), so that they leave the loop together. rank 1 was ended by signal 6 (SIGABRT) after 0.0 "
            "s; all other ranks are ended.");
}

}  // namespace
}  // namespace muster::launcher
