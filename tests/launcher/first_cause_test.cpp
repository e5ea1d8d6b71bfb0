#include "launcher/first_cause.h"

#include <gtest/gtest.h>

namespace muster::launcher {
namespace {

using std::chrono::milliseconds;

TEST(FirstCause, ACrashCountsBeforeACodeAndACodeBeforeAnAbort) {
  FirstCause abort{milliseconds(5), {0, SIGABRT}, 0, 0}, code{milliseconds(5), {3, 0}, 1, 1}, crash{milliseconds(5), {0, SIGSEGV}, 2, 2};
  EXPECT_EQ(choose_cause({abort, code, crash}).rank, 2);
  EXPECT_EQ(choose_cause({abort, code}).rank, 1);
  EXPECT_EQ(choose_cause({abort}).rank, 0);
  FirstCause later = code;
  later.rank = 7;
  EXPECT_EQ(choose_cause({later, code}).rank, 1);
}

TEST(FirstCause, IsToldInPlainWords) {
  std::deque<std::string> last{"one", "two"};
  FirstCause code{milliseconds(1240), {3, 0}, 1, 1}, crash{milliseconds(0), {0, SIGSEGV}, 0, 4};
  auto lines = describe(code, &last);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "muster: MU035: rank 1 exited with code 3 after 1.2 s; all other ranks are ended. Its last lines:");
  EXPECT_EQ(lines[2], "muster:   two");
  last.clear();
  EXPECT_EQ(describe(crash, &last)[0],
            "muster: MU035: rank 4 was ended by signal 11 (SIGSEGV) after 0.0 s; all other ranks are ended. It had written nothing.");
  EXPECT_EQ(describe(crash, nullptr)[0], "muster: MU035: rank 4 was ended by signal 11 (SIGSEGV) after 0.0 s; all other ranks are ended.");
}

}  // namespace
}  // namespace muster::launcher
