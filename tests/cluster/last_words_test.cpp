#include "muster/cluster/detail/last_words.h"

#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::cluster {
namespace {

TEST(LastWords, AreThoseOfErrorsAlone) {
  EXPECT_EQ(words_of_error(std::make_exception_ptr(ConfigError("MU002", "wrong"))), "MU002: wrong");
  EXPECT_FALSE(words_of_error(std::make_exception_ptr(std::runtime_error("other"))));
  EXPECT_FALSE(words_of_error(std::make_exception_ptr(3)));
  EXPECT_FALSE(words_of_error(nullptr));
}

TEST(LastWords, AreLeftWhereTheParentPromisedToSayThem) {
  const auto report = Report::make();
  EXPECT_EQ(read_last_words(report), "");
  EXPECT_FALSE(leave_last_words(report, "MU002: nobody listens"));
  promise_to_say(report);
  const pid_t child = fork();
  if (child == 0) {
    // A child of the child is started by somebody else.
    const pid_t other = fork();
    if (other == 0) _exit(leave_last_words(report, "MU002: of a script's child"));
    int status = 0;
    waitpid(other, &status, 0);
    _exit(WEXITSTATUS(status) ? 7 : leave_last_words(report, "MU002: wrong") ? 0 : 8);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_last_words(report), "MU002: wrong");
}

TEST(LastWords, ThatAreTooLongOrLeadNowhereStayWithTheRank) {
  const auto report = Report::make();
  promise_to_say(report);
  EXPECT_FALSE(leave_last_words(report, std::string(5000, 'x')));
  EXPECT_EQ(read_last_words(report), "");
  promise_to_say(Report());
  EXPECT_FALSE(leave_last_words(Report(), "MU002: wrong"));
  EXPECT_EQ(read_last_words(Report()), "");
}

TEST(LastWords, LeaveTheReportAsItIs) {
  const auto report = Report::make();
  promise_to_say(report);
  report.step(3);
  report.lost(1, "MU052: lost it");
  ASSERT_TRUE(leave_last_words(report, "MU002: wrong"));
  const auto told = report.read();
  EXPECT_EQ(told.steps, 3);
  EXPECT_EQ(told.reason, "MU052: lost it");
  report.start();
  EXPECT_EQ(read_last_words(report), "MU002: wrong");
}

}  // namespace
}  // namespace muster::cluster
