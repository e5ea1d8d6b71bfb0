// The tests of devices.md.
#include <thread>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <muster/base/error.h>
#include <muster/sim/backend.h>
#include <muster/sim/sim.h>
#include <muster/testing/compare.h>
#include <muster/testing/thrown.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

namespace {

namespace sim = muster::sim;

/// The function under test copies batches to the device ahead, on a stream of its own.
torch::Tensor sum_of(const std::vector<torch::Tensor>& batches, c10::Device device, bool waits = true) {
  const c10::impl::VirtualGuardImpl streams(device.type());
  const auto copies = streams.getStreamFromGlobalPool(device), current = streams.getStream(device);
  auto sum = torch::zeros_like(batches.front(), device);
  for (const auto& batch : batches) {
    torch::Tensor there;
    c10::Event copied(device.type());
    {
      const c10::StreamGuard guard(copies);
      there = batch.to(device, /*non_blocking=*/true);
      copied.record(copies);
    }
    if (waits) copied.block(current);
    there.record_stream(current);
    sum += there;
  }
  return sum;
}

class OnSim : public testing::Test {
 protected:
  OnSim() {
    sim::install();
    sim::set_seed(1);
    for (int i = 0; i < 4; ++i) batches.push_back(torch::randn({50}).pin_memory());
  }
  std::vector<torch::Tensor> batches;
};

TEST_F(OnSim, TheSumIsTheCpusUnderEverySeed) {
  auto expected = torch::zeros({50});
  for (const auto& batch : batches) expected += batch;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    sim::set_seed(seed);
    EXPECT_EQ(muster::testing::difference_in_bits(sum_of(batches, sim::device(0)).cpu(), expected), "") << seed;
  }
}

TEST_F(OnSim, TheHostDoesNotWait) {
  sim::reset_stats();
  const auto sum = sum_of(batches, sim::device(0));
  EXPECT_EQ(sim::stats().all_host_waits(), 0);
  (void)sum.cpu();
  EXPECT_EQ(sim::stats().host_waits.at("copy to the host"), 1);
}

TEST_F(OnSim, AMissingWaitIsFound) {
  const auto sum = sum_of(batches, sim::device(0), /*waits=*/false);
  const auto message = muster::testing::thrown([&] { (void)sum.cpu(); });
  EXPECT_TRUE(message.starts_with("MU556: two accesses of the same bytes have no order: copy to the device"))
      << message;
}

TEST_F(OnSim, RanksReduceOnTheirDevices) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const c10::DeviceGuard guard(sim::device(rank));
      const auto group = sim::make_backend(store, rank, 2);
      std::vector<torch::Tensor> sum{torch::full({3}, rank + 1, sim::device(rank))};
      group->allreduce(sum)->wait();
      EXPECT_EQ(muster::testing::difference_in_bits(sum[0].cpu(), torch::full({3}, 3)), "");
    });
  for (auto& rank : ranks) rank.join();
}

}  // namespace
