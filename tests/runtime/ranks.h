#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "muster/cluster/cluster.h"
#include "muster/parallel/managed_model.h"
#include "muster/testing/world.h"

namespace muster::testing {

/// Makes this process a rank as mpirun would, so that a runtime finds the others by itself.
inline void act_as_started_by_mpirun(const ClusterEnvironment& cluster) {
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("OMPI_COMM_WORLD_RANK", std::to_string(cluster.rank));
  set("OMPI_COMM_WORLD_SIZE", std::to_string(cluster.world_size));
  set("OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(cluster.rank));
  set("OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(cluster.world_size));
  // Of each world its own, so that one whose ranks were killed leaves nothing that the next one reads.
  const auto folder = std::filesystem::path(cluster.store_path).parent_path().filename().string();
  set("PMIX_NAMESPACE", "test" + std::to_string(getppid()) + "-" + folder);
}

/// Runs `body` as each of `size` ranks, which are processes in which a Runtime finds the others; every rank must end
/// well. The full tests have eight times as long, as tools/run_tests.py gives them.
inline void as_ranks(int size, const std::function<void()>& body, const std::string& label = {},
                     std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  ProcessWorldOptions options;
  options.arguments = {std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()};
  options.label = label;
  options.timeout = std::getenv("MUSTER_TEST_FULL") ? 8 * timeout : timeout;
  const auto results = run_processes(
      size,
      [&](const ClusterEnvironment& cluster) {
        act_as_started_by_mpirun(cluster);
        body();
        return ::testing::Test::HasFailure() ? 1 : 0;
      },
      options);
  for (size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_TRUE(results[rank].ok()) << "rank " << rank << ":\n" << results[rank].output;
}

}  // namespace muster::testing
