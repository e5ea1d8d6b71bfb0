#include "base/log.h"

#include <thread>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::log {
namespace {

using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = level();
    CaptureStderr();
  }
  void TearDown() override {
    set_level(before_);
    set_rank(-1);
  }
  Level before_;
};

TEST_F(Log, WritesWhatIsAtOrAboveTheLevel) {
  set_level(Level::info);
  debug("too quiet ", 1);
  info("value ", 2, " of ", "{}");
  warning("look");
  error("broken");
  EXPECT_EQ(GetCapturedStderr(), "muster: info: value 2 of {}\nmuster: warning: look\nmuster: error: broken\n");
}

TEST_F(Log, OffIsSilent) {
  set_level(Level::off);
  error("nobody hears this");
  write(Level::off, "nor this");
  EXPECT_EQ(GetCapturedStderr(), "");
}

TEST_F(Log, NamesTheRankOfProcessAndThread) {
  set_rank(3);
  warning("a");
  std::thread([] {
    ThreadRank rank(1);
    warning("b");
    {
      ThreadRank inner(2);
      warning("c");
    }
    warning("d");
  }).join();
  set_rank(-1);
  warning("e");
  EXPECT_EQ(GetCapturedStderr(),
            "muster: warning: rank 3: a\nmuster: warning: rank 1: b\nmuster: warning: rank 2: c\nmuster: warning: rank "
            "1: d\nmuster: warning: e\n");
}

TEST_F(Log, LevelsHaveNames) {
  EXPECT_EQ(parse_level("debug"), Level::debug);
  EXPECT_EQ(parse_level("warn"), Level::warning);
  EXPECT_EQ(parse_level("off"), Level::off);
  try {
    parse_level("loud");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.id(), "MU002");
    EXPECT_NE(std::string(error.what()).find("trace, debug, info"), std::string::npos);
  }
  GetCapturedStderr();
}

}  // namespace
}  // namespace muster::log
