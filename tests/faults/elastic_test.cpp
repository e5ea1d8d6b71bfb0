#include <algorithm>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "cluster/listening_socket.h"
#include "launcher/process.h"

// A job on several nodes that loses one goes on with a smaller world, from its checkpoint, with the right samples.

namespace muster::launcher::testing {
namespace {

using Samples = std::vector<int>;

/// By round, epoch, step and rank.
using Log = std::map<std::tuple<int, int, int, int>, Samples>;

Log read_log(const std::string& folder) {
  Log log;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("samples_")) continue;
    std::ifstream lines(entry.path());
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      int round, epoch, step, rank;
      char colon;
      words >> round >> epoch >> step >> rank >> colon;
      auto& samples = log[{round, epoch, step, rank}];
      for (int sample; words >> sample;) samples.push_back(sample);
    }
  }
  return log;
}

/// Of an epoch in a round, up to a step, as all ranks together had them.
Samples samples_of(const Log& log, int round, int epoch, int last_step = 1000) {
  Samples all;
  for (const auto& [place, samples] : log)
    if (std::get<0>(place) == round && std::get<1>(place) == epoch && std::get<2>(place) <= last_step)
      all.insert(all.end(), samples.begin(), samples.end());
  return all;
}

Samples joined(Samples first, const Samples& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(Elastic, ASmallerWorldContinuesWithTheSampleAfterTheCheckpoint) {
  const Folder folder;
  const auto port = std::to_string(cluster::ListeningSocket(0, "127.0.0.1").port());
  const auto secret = folder.write("secret", std::string(32, 's'), 0600);
  const std::string program = MUSTER_BINARY_DIR "/tests/elastic_rank";
  std::deque<Process> nodes;
  for (int rank = 0; rank < 3; ++rank)
    nodes.emplace_back(
        muster_run({"--nodes", "2:3", "--node-rank", std::to_string(rank), "--main-address", "127.0.0.1", "--main-port",
                    port, "--secret-file", secret, "--max-restarts", "2", "--last-call-timeout", "3s", "--devices", "1",
                    "--no-prefix", program, folder.path()}));
  std::vector<Watched> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(watched_rank(nodes[static_cast<std::size_t>(rank)], rank));
  nodes[1].signal(SIGKILL);
  for (const auto& rank : ranks) EXPECT_TRUE(rank.ends());
  for (std::size_t i : {0, 2}) {
    EXPECT_EQ(nodes[i].wait(), 0) << nodes[i].error();
    EXPECT_NE(nodes[i].out().find("of 2, resumed 1"), std::string::npos) << nodes[i].out();
  }
  const auto log = read_log(folder.path());
  // Three steps of three ranks are in the checkpoint: 18 samples, where no step of two ranks would begin.
  const auto trained = samples_of(log, 0, 0, 3), first = joined(trained, samples_of(log, 1, 0));
  EXPECT_EQ(trained.size(), 18u);
  EXPECT_EQ(log.at({1, 0, 1, 0}).size(), 2u) << "of a rank's batch";
  Samples every(48);
  std::iota(every.begin(), every.end(), 0);
  EXPECT_NE(first, every) << "the order is not shuffled";
  for (auto epoch : {first, samples_of(log, 1, 1)}) {
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(epoch, every);
  }
  // As of the one order: what the lost steps trained comes first again.
  const auto lost = samples_of(log, 0, 0, 5);
  EXPECT_EQ(Samples(first.begin(), first.begin() + 30), lost);
}

}  // namespace
}  // namespace muster::launcher::testing
