#include <atomic>
#include <future>

#include <gtest/gtest.h>

#include "comm/gloo_transport.h"

namespace muster::comm {
namespace {

TEST(TransportWatchdog, LooksUntilItsOwnerIsRemoved) {
  auto watch = TransportWatchdog::of_process();
  EXPECT_EQ(watch, TransportWatchdog::of_process());
  std::atomic<int> looks = 0;
  std::promise<void> twice;
  int owner = 0, other = 0;
  watch->add(&owner, [&] {
    if (++looks == 2) twice.set_value();
  });
  EXPECT_EQ(twice.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  std::promise<void> looked;
  std::atomic<bool> is_first = true;
  watch->remove(&owner);
  const int before = looks;
  watch->add(&other, [&] {
    if (is_first.exchange(false)) looked.set_value();
  });
  looked.get_future().wait();
  EXPECT_EQ(looks, before);
  watch->remove(&other);
}

}  // namespace
}  // namespace muster::comm
