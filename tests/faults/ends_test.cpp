#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/process.h"

// Jobs of two ranks of which one comes to its end in some way: whoever started them names that one, however late it is
// seen.

namespace muster::launcher::testing {
namespace {

const std::string kEnding = MUSTER_BINARY_DIR "/tests/ending_rank";

struct Ended {
  int code = 0;
  std::string words;  ///< of the launcher and of the ranks on stderr
};

/// KIND of rank `victim`, under `muster run` or by launch() from the program's own code.
Ended end_of(const std::string& kind, int victim, bool from_code, std::vector<std::string> options = {},
             const Process::Setup& setup = {}) {
  const Folder folder;
  std::vector<std::string> command{kEnding, from_code ? "launch" : "run", kind, std::to_string(victim),
                                   folder.path() + "/state"};
  if (!from_code) {
    options.insert(options.begin(), {"--devices", "2"});
    options.insert(options.end(), command.begin(), command.end());
    command = muster_run(options);
  }
  Process job(command, setup);
  const int code = job.wait();
  return {code, job.error()};
}

struct Kind {
  const char* name;
  int code;           ///< of the rank, and so of the job
  std::string words;  ///< of the launcher, after the rank's number
};

class FirstEnd : public ::testing::TestWithParam<Kind> {};

TEST_P(FirstEnd, IsNamedWhoeverStartedTheRanks) {
  const auto& kind = GetParam();
  const int times = std::getenv("MUSTER_TEST_FULL") ? 100 : 5;
  for (int i = 0; i < times; ++i) {
    const bool from_code = i % 2 == 1;
    const int victim = (i / 2) % 2;
    SCOPED_TRACE("time " + std::to_string(i) + ", rank " + std::to_string(victim) +
                 (from_code ? ", from code" : ", muster run"));
    const auto [code, words] = end_of(kind.name, victim, from_code);
    EXPECT_EQ(code, kind.code) << words;
    // Nobody is left to speak where the process that started the others has crashed.
    if (from_code && victim == 0 && std::string(kind.name) == "signal") continue;
    EXPECT_NE(words.find("muster: MU035: rank " + std::to_string(victim) + " " + kind.words), std::string::npos)
        << words;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, FirstEnd,
    ::testing::Values(Kind{"uncaught", 134, "was ended by signal 6 (SIGABRT)"}, Kind{"caught", 1, "exited with code 1"},
                      Kind{"signal", 139, "was ended by signal 11 (SIGSEGV)"}, Kind{"exit", 3, "exited with code 3"},
                      Kind{"data_set", 1, "exited with code 1"}, Kind{"save", 1, "exited with code 1"},
                      Kind{"disk", 1, "exited with code 1"}),
    [](const auto& test) { return test.param.name; });

void expect_words(const std::string& words, const std::vector<std::string>& wanted) {
  for (const auto& text : wanted)
    EXPECT_NE(words.find(text), std::string::npos) << "missing: " << text << "\n" << words;
}

TEST(Ends, RanksThatMakeDifferentNumbersOfStepsAreToldSo) {
  for (const bool from_code : {false, true})
    for (const int victim : {0, 1}) {
      const std::string left = std::to_string(victim), other = std::to_string(1 - victim);
      const auto [code, words] = end_of("early", victim, from_code);
      EXPECT_EQ(code, 1) << words;
      expect_words(words, {"muster: MU038: rank " + left + " left main normally after 2 steps while rank " + other +
                               " was in step 3: ranks made different numbers of steps; use check_trigger()",
                           "MU052: rank " + other + " lost rank " + left, "it has left the loop earlier"});
      EXPECT_EQ(words.find("MU035"), std::string::npos) << words;
    }
}

TEST(Ends, AStoppedRankEndsTheJobInTheTimeOutThatTheLauncherWasGiven) {
  // The ranks must also have met within it.
  expect_words(end_of("stop", 1, false, {"--timeout", "6"}).words,
               {"MU051: rank 0 waited 6.", "muster: MU039: rank 1 did not answer, in step 3 and still runs: rank 0"});
  Process::Setup setup;
  setup.environment = {"MUSTER_TIMEOUT=6"};
  expect_words(end_of("stop", 1, true, {}, setup).words,
               {"MU051: rank 0 waited 6.", "muster: MU039: rank 1 did not answer"});
}

TEST(Ends, AnExceptionsWordsStandInTheLastLinesWithoutItsFrames) {
  const auto words = end_of("shapes", 1, false).words;
  expect_words(words, {"muster: MU035: rank 1 was ended by signal 6 (SIGABRT)"});
  // From LibTorch 2.15 on the operator's name stands first.
  EXPECT_THAT(words,
              ::testing::ContainsRegex("muster:     what\\(\\):  (mm: )?mat1 and mat2 shapes cannot be multiplied"));
  EXPECT_EQ(words.find("muster:   frame #"), std::string::npos) << words;
}

// That /dev/shm has no new segment, and that no process is left, leftovers.cpp sees at the end of the program.
class RestartsInSharedMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(RestartsInSharedMemory, LeaveNoFileBehind) {
  const Folder temporary;
  Process::Setup setup;
  setup.environment = {"TMPDIR=" + temporary.path()};
  const auto [code, words] = end_of("exit", 1, false, {"--max-restarts", "3", "--backend", "shm", GetParam()}, setup);
  EXPECT_EQ(code, 3) << words;
  expect_words(words, {"the job failed 4 times:", "  4. MU035: rank 1 exited with code 3"});
  // The folder of this user's temporary files stays, and is empty.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(temporary.path()))
    EXPECT_EQ(entry.path().filename(), "muster-" + std::to_string(geteuid()));
}

INSTANTIATE_TEST_SUITE_P(Ways, RestartsInSharedMemory, ::testing::Values("--no-fork-ranks", "--fork-ranks"),
                         [](const auto& param) { return param.index == 0 ? "spawned" : "forked"; });

}  // namespace
}  // namespace muster::launcher::testing
