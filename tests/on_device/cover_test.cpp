// Programs of the public API on an accelerator have the results that they have on the CPU: every pair of a strategy, a
// precision, a number of ranks and a use. On the simulated one they are the same bits, under several seeds, and missing
// orders are errors; on a GPU they are near, and the same bits each time.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/compare.h"
#include "on_device/programs.h"
#include "on_device/test_device.h"
#include "runtime/device_course.h"

namespace muster::on_device {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kStrategies{"none", "ddp", "zero1", "zero2", "fsdp", "hsdp"};
const std::vector<std::string> kPrecisions{"32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true"};
const std::vector<std::string> kUses{"plain",  "clipping",  "accumulation", "uneven",  "local SGD", "hooks",
                                     "resume", "exception", "averaging",    "trainer", "recompute"};
const std::vector<int> kWorlds{1, 2, 3, 4};

/// The pairs of properties of a case.
std::vector<std::string> pairs_of(const Case& one) {
  const std::array<std::string, 4> parts{one.strategy, one.precision, one.use, std::to_string(one.world)};
  std::vector<std::string> pairs;
  for (size_t i = 0; i < parts.size(); ++i)
    for (size_t j = i + 1; j < parts.size(); ++j) pairs.push_back(parts[i] + "|" + parts[j]);
  return pairs;
}

/// Few cases with all pairs that there are, found greedily.
std::vector<Case> cover(std::set<std::string>& left_out) {
  std::vector<Case> all, chosen;
  std::vector<std::vector<std::string>> pairs;  // of each of all
  std::set<std::string> missing;
  for (const auto& strategy : kStrategies)
    for (const auto& precision : kPrecisions)
      for (const auto& use : kUses)
        for (const int world : kWorlds) {
          const Case one{strategy, precision, use, world};
          if (auto reason = why_not(one); !reason.empty()) {
            left_out.insert(std::move(reason));
            continue;
          }
          all.push_back(one);
          pairs.push_back(pairs_of(one));
          missing.insert(pairs.back().begin(), pairs.back().end());
        }
  const auto gain = [&](const std::vector<std::string>& of) {
    return std::count_if(of.begin(), of.end(), [&](const auto& pair) { return missing.contains(pair); });
  };
  while (!missing.empty()) {
    std::vector<std::ptrdiff_t> gains;
    std::transform(pairs.begin(), pairs.end(), std::back_inserter(gains), gain);
    const auto best = std::max_element(gains.begin(), gains.end()) - gains.begin();
    chosen.push_back(all[static_cast<size_t>(best)]);
    for (const auto& pair : pairs[static_cast<size_t>(best)]) missing.erase(pair);
  }
  return chosen;
}

int seeds() { return testing::on_cuda() ? 2 : std::getenv("MUSTER_TEST_FULL") ? 100 : 10; }

/// As run(), with the case in the message of an exception.
Weights traced(const Case& one, bool on_cpu, const fs::path& folder, int seed) {
  try {
    return run(one, on_cpu, folder);
  } catch (const std::exception& error) {
    throw std::runtime_error(one.text() + ", seed " + std::to_string(seed) + ": " + error.what());
  }
}

void expect_results_of_cpu(const Case& one, const fs::path& folder) {
  SCOPED_TRACE(one.text());
  testing::set_order(0);
  auto expected = traced(one, /*on_cpu=*/true, folder, 0);
  const bool half = !one.precision.starts_with("32");
  for (int seed = 0; seed < seeds() && !::testing::Test::HasFailure(); ++seed) {
    testing::set_order(static_cast<uint64_t>(seed));
    auto trained = traced(one, /*on_cpu=*/false, folder, seed);
    ASSERT_EQ(trained.size(), expected.size());
    for (size_t i = 0; i < trained.size(); ++i)
      EXPECT_EQ(seed == 0 ? testing::unexpected_difference(trained[i].second, expected[i].second, half)
                          : testing::difference_in_bits(trained[i].second, expected[i].second),
                "")
          << trained[i].first << ", seed " << seed;
    EXPECT_EQ(testing::races(), "");
    expected = std::move(trained);
  }
}

/// Of a process and the ranks that it starts.
fs::path folder_of(int process) { return fs::temp_directory_path() / ("muster_cover_" + std::to_string(process)); }

void expect_results_of_cpu(int world) {
  std::set<std::string> left_out;
  const auto cases = cover(left_out);
  muster::testing::as_device_ranks(
      world,
      [&] {
        for (const auto& one : cases)
          if (one.world == world) expect_results_of_cpu(one, folder_of(::getppid()));
      },
      std::chrono::minutes(9));
  fs::remove_all(folder_of(::getpid()));
  std::printf(
      "%d of %zu cases of the cover ran under %d seeds; left out:\n",
      static_cast<int>(std::count_if(cases.begin(), cases.end(), [&](const auto& c) { return c.world == world; })),
      cases.size(), seeds());
  for (const auto& reason : left_out) std::printf("  %s\n", reason.c_str());
}

TEST(TrainingOnDevice, OfOneRankHasTheResultsOfTheCpu) { expect_results_of_cpu(1); }
TEST(TrainingOnDevice, OfTwoRanksHasTheResultsOfTheCpu) { expect_results_of_cpu(2); }
TEST(TrainingOnDevice, OfThreeRanksHasTheResultsOfTheCpu) { expect_results_of_cpu(3); }
TEST(TrainingOnDevice, OfFourRanksHasTheResultsOfTheCpu) { expect_results_of_cpu(4); }

}  // namespace
}  // namespace muster::on_device
