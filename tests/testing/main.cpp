// The main() of test programs with LibTorch. Their ranks are forks, for loading LibTorch takes longer than most tests.
#include <cstdlib>

#include <gtest/gtest.h>

#include "muster/testing/world.h"

int main(int argc, char** argv) {
#ifndef __SANITIZE_THREAD__  // it loses track of threads that a fork starts
  if (!std::getenv("MUSTER_TEST_FULL")) muster::testing::start_fork_server(argc, argv);
#endif
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
