#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/base/temporary_folder.h"
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

TEST(Processes, ACallEndsWithItsRanksWhateverTheyDoWithTheirOutput) {
  const auto begin = std::chrono::steady_clock::now();
  const auto results =
      run_processes(2,
                    [](const ClusterEnvironment& cluster) {
                      if (cluster.rank == 0) {
                        ::close(1), ::close(2);
                        for (;;) ::pause();
                      }
                      if (::fork() == 0) {  // holds the pipe of its rank
                        ::sleep(30);
                        ::_exit(0);
                      }
                      std::cout << "before the end" << std::flush;
                      return 3;
                    },
                    {.arguments = {"--gtest_filter=Processes.ACallEndsWithItsRanksWhateverTheyDoWithTheirOutput"},
                     .timeout = std::chrono::seconds(5)});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(25));
  EXPECT_TRUE(results[0].timed_out);
  EXPECT_EQ(results[0].signal, SIGKILL);
  EXPECT_FALSE(results[1].timed_out);
  EXPECT_EQ(results[1].exit_code, 3);
  EXPECT_TRUE(results[1].output.ends_with("before the end")) << results[1].output;
}

TEST(Processes, ARankThatThrowsAnythingExitsWith70) {
  const auto results = run_processes(1, [](const ClusterEnvironment&) -> int { throw 42; },
                                     {.arguments = {"--gtest_filter=Processes.ARankThatThrowsAnythingExitsWith70"}});
  EXPECT_EQ(results[0].exit_code, 70);
  EXPECT_NE(results[0].output.find("rank 0: an exception that is not a std::exception"), std::string::npos);
}

std::string id_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.id();
  }
  return "no error";
}

TEST(Processes, WhereNobodyWouldLearnHowRanksEndNothingStarts) {
  const auto run = [](int size) { run_processes(size, [](const ClusterEnvironment&) { return 0; }); };
  EXPECT_EQ(id_of([&] { run(-1); }), "MU064");
  ::signal(SIGCHLD, SIG_IGN);
  const auto id = id_of([&] { run(1); });
  ::signal(SIGCHLD, SIG_DFL);
  EXPECT_EQ(id, "MU064");
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

/// It cannot ask the server, whose ranks would not be its children; there the program is started again.
TEST(ForkServer, AForkOfTheTestHasRanksOfItsOwn) {
  const auto fails = [] {
    return run_processes(1, [](const ClusterEnvironment&) { return 5; },
                         {.arguments = {"--gtest_filter=ForkServer.AForkOfTheTestHasRanksOfItsOwn"}})[0]
        .exit_code;
  };
  EXPECT_EQ(fails(), 5);
  const pid_t fork = ::fork();
  if (fork == 0) ::_exit(fails() == 5 ? 0 : 1);
  int status = -1;
  ::waitpid(fork, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Processes, InAFolderThatIsGoneNothingStarts) {
  const auto former = std::filesystem::current_path(), gone = new_temporary_folder("gone");
  std::filesystem::current_path(gone);
  std::filesystem::remove(gone);
  const auto id = id_of([] { run_processes(1, [](const ClusterEnvironment&) { return 0; }); });
  std::filesystem::current_path(former);
  EXPECT_EQ(id, "MU064");
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
