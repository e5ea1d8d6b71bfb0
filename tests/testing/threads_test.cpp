#include <atomic>
#include <stdexcept>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/testing/world.h"

namespace muster::testing {
namespace {

TEST(Threads, EveryRankRunsOnce) {
  for (uint64_t seed : {0, 1}) {
    std::atomic<int> ranks = 0;
    run_threads(5, seed, [&](const comm::Communicator& comm) { ranks += 1 << (4 * comm.rank()); });
    EXPECT_EQ(ranks, 0x11111);
  }
}

TEST(Threads, AFailureNamesRankAndSeed) {
  auto message = [](const std::function<void(comm::Communicator)>& body) {
    try {
      run_threads(3, 42, body);
    } catch (const Error& error) {
      return error.id() + " " + error.what();
    }
    return std::string();
  };
  EXPECT_EQ(message([](const comm::Communicator& comm) {
              if (comm.rank() == 1) throw std::runtime_error("wrong");
            }),
            "MU062 MU062: rank 1 of 3 threads, seed 42: wrong");
  EXPECT_EQ(message([](const comm::Communicator& comm) {
              if (comm.rank() == 1) throw 42;
              comm.barrier();
            }),
            "MU062 MU062: rank 1 of 3 threads, seed 42: an exception that is not a std::exception")
      << "and not what rank 0 throws because of it";
  EXPECT_THROW(run_threads(0, 1, [](const comm::Communicator&) {}), LaunchError);
  std::string lost = message([](const comm::Communicator& comm) {
    if (comm.rank() != 1) comm.barrier();
  });
  EXPECT_TRUE(lost.starts_with("MU052")) << lost;
  EXPECT_NE(lost.find("seed 42"), std::string::npos) << lost;
}

}  // namespace
}  // namespace muster::testing
