#include "comm/wait_policy.h"

#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
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

TEST(IsReady, EndsAtItsDeadlineAlthoughSignalsInterruptEveryWait) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto before = std::signal(SIGALRM, [](int) {});
  const itimerval often{.it_interval = {0, 500}, .it_value = {0, 500}}, never{};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  EXPECT_FALSE(is_ready(ends[0], POLLIN, TimePoint::clock::now() + std::chrono::milliseconds(50)));
  ::setitimer(ITIMER_REAL, &never, nullptr);
  std::signal(SIGALRM, before);
  EXPECT_TRUE(is_ready(ends[1], POLLOUT, TimePoint::clock::now() + std::chrono::seconds(10)));
  for (const int end : ends) ::close(end);
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
