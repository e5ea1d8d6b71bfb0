#include <signal.h>

#include <cerrno>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "launcher/process.h"

// Real ranks of `muster run` that die in the midst of sharded training.

namespace muster::launcher::testing {
namespace {

const std::string kProgram = MUSTER_BINARY_DIR "/tests/sharded_rank";

/// How many ranks have said who they are, after each was found gone.
int ranks_gone(const std::string& output) {
  int gone = 0;
  std::istringstream text(output);
  for (std::string line; std::getline(text, line);)
    if (const auto at = line.find(" pid "); at != std::string::npos) {
      EXPECT_TRUE(kill(std::stoi(line.substr(at + 5)), 0) != 0 && errno == ESRCH) << line << " is still there";
      ++gone;
    }
  return gone;
}

/// What a job says whose rank 1 dies there.
std::string last_words(const std::string& place, const std::string& folder, int code) {
  SCOPED_TRACE(place);
  Process job(muster_run({"--devices", "2", kProgram, place, folder}));
  EXPECT_EQ(job.wait(), code) << job.error();
  EXPECT_EQ(ranks_gone(job.out()), 2) << job.out();
  return job.error();
}

TEST(ShardedRanks, AllEndWithTheRootCauseWhereverOneIsKilled) {
  for (const char* place : {"forward", "backward", "gather", "reduction", "update"}) {
    const Folder folder;
    const auto words = last_words(place, folder.path() + "/state", 137);
    EXPECT_NE(words.find("MU035: rank 1 was ended by signal 9 (SIGKILL)"), std::string::npos) << place << ":\n"
                                                                                              << words;
  }
}

TEST(ShardedRanks, AnExceptionOfOneRanksOwnCodeEndsAllAndIsTold) {
  const Folder folder;
  const auto words = last_words("exception", folder.path() + "/state", 134);
  EXPECT_NE(words.find("MU035: rank 1"), std::string::npos) << words;
  EXPECT_NE(words.find("the user's own trouble"), std::string::npos) << words;
}

TEST(ShardedRanks, ARankKilledInASaveLeavesTheFormerCheckpoint) {
  const Folder folder;
  const auto state = folder.path() + "/state";
  const auto words = last_words("save", state, 137);
  EXPECT_NE(words.find("MU035: rank 1 was ended by signal 9 (SIGKILL)"), std::string::npos) << words;
  Process again(muster_run({"--devices", "2", kProgram, "nowhere", state}));
  EXPECT_EQ(again.wait(), 0) << again.error();
  EXPECT_NE(again.out().find("resumed"), std::string::npos) << again.out();
}

}  // namespace
}  // namespace muster::launcher::testing
