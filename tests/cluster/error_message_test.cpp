#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include <gtest/gtest.h>

#include "cluster/report.h"
#include "muster/base/error.h"

namespace muster::cluster {
namespace {

TEST(ErrorMessage, AreThoseOfErrorsAlone) {
  EXPECT_EQ(error_message_of(std::make_exception_ptr(ConfigError("MU002", "wrong"))), "MU002: wrong");
  EXPECT_FALSE(error_message_of(std::make_exception_ptr(std::runtime_error("other"))));
  EXPECT_FALSE(error_message_of(std::make_exception_ptr(3)));
  EXPECT_FALSE(error_message_of(nullptr));
}

TEST(ErrorMessage, AreLeftWhereTheParentPromisedToSayThem) {
  const auto report = Report::make();
  EXPECT_EQ(read_error_message(report), "");
  EXPECT_FALSE(write_error_message(report, "MU002: nobody listens"));
  promise_to_print(report);
  const pid_t child = fork();
  if (child == 0) {
    // A child of the child is started by somebody else.
    const pid_t other = fork();
    if (other == 0) _exit(write_error_message(report, "MU002: of a script's child"));
    int status = 0;
    waitpid(other, &status, 0);
    _exit(WEXITSTATUS(status) ? 7 : write_error_message(report, "MU002: wrong") ? 0 : 8);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_error_message(report), "MU002: wrong");
}

TEST(ErrorMessage, ThatAreTooLongOrLeadNowhereStayWithTheRank) {
  const auto report = Report::make();
  promise_to_print(report);
  EXPECT_FALSE(write_error_message(report, std::string(5000, 'x')));
  EXPECT_EQ(read_error_message(report), "");
  promise_to_print(Report());
  EXPECT_FALSE(write_error_message(Report(), "MU002: wrong"));
  EXPECT_EQ(read_error_message(Report()), "");
}

TEST(ErrorMessage, LeaveTheReportAsItIs) {
  const auto report = Report::make();
  promise_to_print(report);
  report.step(3);
  report.lost(1, "MU052: lost it");
  ASSERT_TRUE(write_error_message(report, "MU002: wrong"));
  const auto told = report.read();
  EXPECT_EQ(told.steps, 3);
  EXPECT_EQ(told.reason, "MU052: lost it");
  report.start();
  EXPECT_EQ(read_error_message(report), "MU002: wrong");
}

}  // namespace
}  // namespace muster::cluster
