#include "options/other_names.h"

#include <gtest/gtest.h>

namespace muster::launcher {
namespace {

TEST(OtherNames, HaveOursOrARemark) {
  EXPECT_EQ(spelling_here("num_processes"), "--devices");
  EXPECT_EQ(spelling_here("nnodes"), "--nodes");
  EXPECT_EQ(spelling_here("no_python"), "nothing: the program is executed as it is");
  EXPECT_EQ(spelling_here("devices"), "");
}

}  // namespace
}  // namespace muster::launcher
