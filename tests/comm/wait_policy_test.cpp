#include "comm/wait_policy.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "comm/thread_world.h"

namespace muster::comm {
namespace {

/// The order in which three threads pass five points each.
std::string order_under(uint64_t seed) {
  SeededScheduler schedule(seed);
  std::string order;
  std::vector<std::thread> threads;
  for (char name : {'a', 'b', 'c'})
    threads.push_back(schedule.start_thread([&, name] {
      for (int i = 0; i < 5; ++i) {
        schedule.pause();
        order += name;
      }
    }));
  schedule.begin();
  for (auto& thread : threads) schedule.join(thread);
  return order;
}

TEST(SeededScheduler, TheSeedDecidesTheOrder) {
  std::set<std::string> orders;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    EXPECT_EQ(order_under(seed), order_under(seed)) << "seed " << seed;
    orders.insert(order_under(seed));
  }
  EXPECT_GT(orders.size(), 30u);
}

TEST(SeededScheduler, NobodySleepsWhenNobodyCanGoOn) {
  SeededScheduler schedule(3);
  bool in_time = true;
  auto thread = schedule.start_thread([&] {
    base::Lock lock(schedule.mutex());
    in_time = schedule.wait(
        lock, [] { return false; }, std::chrono::steady_clock::now() + std::chrono::hours(1));
  });
  schedule.begin();
  schedule.join(thread);
  EXPECT_FALSE(in_time);
}

TEST(SeededScheduler, TheSameSeedGivesTheSameRun) {
  auto order_of = [](uint64_t seed) {
    std::string order;
    run_thread_world(3, {.seed = seed}, [&](const Communicator& comm) {
      for (int i = 0; i < 4; ++i) {
        comm.barrier();
        order += static_cast<char>('0' + comm.rank());
      }
    });
    return order;
  };
  std::set<std::string> orders;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(order_of(seed), order_of(seed)) << "seed " << seed;
    orders.insert(order_of(seed));
  }
  EXPECT_GT(orders.size(), 5u);
}

}  // namespace
}  // namespace muster::comm
