#include <gtest/gtest.h>

#include "launcher/fork_server.h"

namespace muster::launcher {
namespace {

const Environment kRank{{"RANK", "1"},          {"LOCAL_RANK", "1"}, {"WORLD_SIZE", "2"},      {"MUSTER_STORE_FD", "7"},
                        {"MUSTER_SECRET", "s"}, {"PATH", "/bin"},    {"OMP_NUM_THREADS", "2"}, {"EMPTY", ""}};

TEST(ForkVariables, TheServerHasWhatIsTheSameForAllRanks) {
  const auto server = fork_server_environment(kRank);
  EXPECT_EQ(
      server.lines(),
      Environment(
          {{"WORLD_SIZE", "2"}, {"MUSTER_SECRET", "s"}, {"PATH", "/bin"}, {"OMP_NUM_THREADS", "2"}, {"EMPTY", ""}})
          .lines());
  EXPECT_EQ(fixed_difference(server, kRank), std::nullopt);
}

TEST(ForkVariables, ALibraryMayHaveReadAnyOtherVariable) {
  const auto server = fork_server_environment(kRank);
  for (const auto& [name, text] : {std::pair("OMP_NUM_THREADS", "1"), {"NEW", "x"}}) {
    auto rank = kRank;
    rank.set(name, text);
    EXPECT_EQ(fixed_difference(server, rank), name);
  }
  auto rank = kRank;
  rank.unset("PATH");
  EXPECT_EQ(fixed_difference(server, rank), "PATH");
}

TEST(ForkVariables, EachRankMaySeeAnotherDevice) {
  auto rank = kRank;
  rank.set("CUDA_VISIBLE_DEVICES", "MIG-a");
  const auto server = fork_server_environment(rank);
  EXPECT_FALSE(server.has("CUDA_VISIBLE_DEVICES"));
  rank.set("CUDA_VISIBLE_DEVICES", "MIG-b");
  EXPECT_EQ(fixed_difference(server, rank), std::nullopt);
}

TEST(ForkVariables, ARankChangesWhatItHasOtherwise) {
  const auto server = fork_server_environment(kRank);
  auto rank = kRank;
  rank.set("MUSTER_SECRET", "t=u");
  rank.unset("WORLD_SIZE");
  const std::string words = variable_words(server, rank, {"MUSTER_STORE_FD", "MUSTER_REPORT_FD"});
  const std::string expected(
      "=LOCAL_RANK=1\0=MUSTER_SECRET=t=u\0=RANK=1\0-WORLD_SIZE\0#MUSTER_STORE_FD\0#MUSTER_REPORT_FD\0", 88);
  EXPECT_EQ(words, expected);
}

}  // namespace
}  // namespace muster::launcher
