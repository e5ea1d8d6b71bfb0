#include "muster/base/environment.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Environment, EmptyCountsAsNotSet) {
  Environment variables{{"A", "1"}, {"B", ""}};
  EXPECT_EQ(variables.find("A"), "1");
  EXPECT_FALSE(variables.has("B"));
  EXPECT_FALSE(variables.has("C"));
  variables.set("B", "x=y");
  variables.unset("A");
  variables.unset("no such");
  EXPECT_EQ(variables.lines(), std::vector<std::string>{"B=x=y"});
}

TEST(Environment, IsThatOfTheProcess) {
  setenv("MUSTER_TEST_VARIABLE", "a=b", 1);
  EXPECT_EQ(Environment::of_process().find("MUSTER_TEST_VARIABLE"), "a=b");
  unsetenv("MUSTER_TEST_VARIABLE");
  EXPECT_FALSE(Environment::of_process().has("MUSTER_TEST_VARIABLE"));
}

}  // namespace
}  // namespace muster
