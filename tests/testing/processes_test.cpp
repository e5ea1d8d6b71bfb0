#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/testing/gtest.h"

namespace muster::testing {
namespace {

TEST(Processes, RanksMeetAndReportHowTheyEnd) {
  auto own = ::getpid();
  auto results = run_test_processes(3, [](const comm::Communicator& comm) {
    at::Tensor one = at::ones({1});
    comm.all_reduce(one);
    std::cout << "rank " << comm.rank() << " has " << one.item<float>() << std::endl;
    if (comm.rank() == 1) throw std::runtime_error("no more");
    if (comm.rank() == 2) ::raise(SIGKILL);
  });
  EXPECT_EQ(::getpid(), own) << "only the first process comes back";
  ASSERT_EQ(results.size(), 3u);
  EXPECT_TRUE(results[0].ok()) << results[0].output;
  EXPECT_NE(results[0].output.find("rank 0 has 3"), std::string::npos) << results[0].output;
  EXPECT_EQ(results[1].exit_code, 70);
  EXPECT_NE(results[1].output.find("rank 1: no more"), std::string::npos) << results[1].output;
  EXPECT_EQ(results[2].signal, SIGKILL);
}

TEST(Processes, FailedAssertionsFailTheRank) {
  auto results = run_processes(1,
                               [](const ClusterEnvironment&) {
                                 EXPECT_EQ(1, 2);
                                 return ::testing::Test::HasFailure() ? 1 : 0;
                               },
                               {.arguments = {"--gtest_filter=Processes.FailedAssertionsFailTheRank"}});
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_FALSE(results[0].timed_out);
}

TEST(Processes, LateRanksAreKilled) {
  auto results = run_processes(
      2,
      [](const ClusterEnvironment&) {
        for (;;) ::pause();
        return 0;
      },
      {.arguments = {"--gtest_filter=Processes.LateRanksAreKilled"}, .timeout = std::chrono::milliseconds(500)});
  for (const auto& result : results) {
    EXPECT_TRUE(result.timed_out);
    EXPECT_EQ(result.signal, SIGKILL);
  }
}

TEST(Processes, CallsOfOneTestAreToldApart) {
  auto say = [](const std::string& label) {
    return run_test_processes(
        1, [&](const comm::Communicator&) { std::cout << "this is the " << label << std::endl; }, label);
  };
  auto first = say("first"), second = say("second");
  EXPECT_NE(first[0].output.find("this is the first"), std::string::npos) << first[0].output;
  EXPECT_NE(second[0].output.find("this is the second"), std::string::npos) << second[0].output;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::string all(std::istreambuf_iterator<char>(file), {});
  std::replace(all.begin(), all.end(), '\0', ' ');
  return all;
}

TEST(ForkServer, RanksAreChildrenOfTheTestInItsFolderAndEnvironment) {
  if (std::getenv("MUSTER_TEST_FULL")) GTEST_SKIP() << "make test-full starts the program again for each rank";
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "under ThreadSanitizer the program is started again for each rank";
#endif
  const auto former = std::filesystem::current_path();
  std::filesystem::current_path("/");
  ::setenv("MUSTER_TEST_WORD", "given", 1);
  const auto results = run_test_processes(2, [](const comm::Communicator&) {
    const auto* word = std::getenv("MUSTER_TEST_WORD");
    std::cout << ::getppid() << " " << std::filesystem::current_path().string() << " " << (word ? word : "") << " "
              << command_line() << std::endl;
  });
  ::unsetenv("MUSTER_TEST_WORD");
  std::filesystem::current_path(former);
  for (const auto& result : results) {
    EXPECT_TRUE(result.ok()) << result.output;
    EXPECT_NE(result.output.find(std::to_string(::getpid()) + " / given " + command_line()), std::string::npos)
        << result.output;
  }
}

TEST(ForkServer, AProgramIsStartedAgainWhereLibrariesReadOtherVariablesAtLoad) {
  ::setenv("OMP_NUM_THREADS", "1", 1);
  const auto results =
      run_test_processes(1, [](const comm::Communicator&) { std::cout << command_line() << std::endl; });
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_NE(results[0].output.find("--gtest_filter=ForkServer.AProgramIsStartedAgain"), std::string::npos)
      << results[0].output;
}

TEST(Processes, WithoutAFolderNothingStarts) {
  ::setenv("TMPDIR", "/nowhere/at/all", 1);
  try {
    run_processes(2, [](const ClusterEnvironment&) { return 0; });
    ADD_FAILURE() << "no error";
  } catch (const LaunchError& error) {
    EXPECT_EQ(error.id(), "MU064");
  }
  ::unsetenv("TMPDIR");
}

}  // namespace
}  // namespace muster::testing
