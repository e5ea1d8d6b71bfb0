#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "muster/comm/options.h"
#include "muster/comm/rendezvous.h"
#include "muster/testing/world.h"

namespace muster::testing {

/// Calls run_processes() for the current GoogleTest test: `body` runs on every rank, connected to the others; a failed
/// assertion in it fails the rank.
inline std::vector<RankResult> run_test_processes(int size, const std::function<void(comm::Communicator)>& body,
                                                  const std::string& label = {}, const GroupOptions& group = {},
                                                  std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  ProcessWorldOptions options;
  options.arguments = {std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()};
  options.label = label;
  options.timeout = timeout;
  auto as_rank = [&](const ClusterEnvironment& cluster) {
    body(comm::connect(cluster, group));
    return ::testing::Test::HasFailure() ? 1 : 0;
  };
  return run_processes(size, as_rank, options);
}

/// Calls run_test_processes() and expects that every rank succeeds.
inline void expect_processes(int size, const std::function<void(comm::Communicator)>& body,
                             const std::string& label = {}, const GroupOptions& group = {}) {
  auto results = run_test_processes(size, body, label, group);
  for (std::size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_TRUE(results[rank].ok()) << "rank " << rank << " ended with code " << results[rank].exit_code << ", signal "
                                    << results[rank].signal << (results[rank].timed_out ? ", out of time" : "")
                                    << ", and wrote:\n"
                                    << results[rank].output;
}

}  // namespace muster::testing
