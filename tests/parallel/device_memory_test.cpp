#include <atomic>
#include <set>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include "parallel/device_training.h"
#include "parallel/sharded/buffer_pool.h"

namespace muster::parallel::on_device {
namespace {

constexpr device::SyncPoint kTest{"a test: one stream waits for another"};

TEST(DeviceMemory, IsTakenAgainAfterAllStreamsThatHaveUsedIt) {
  sim::install();
  for (uint64_t seed = 0; seed < 10; ++seed) {
    sim::set_seed(seed);
    const auto device = sim::device(0);
    const auto one = device::stream_from_pool(device), other = device::stream_from_pool(device);
    std::vector<at::Tensor> sums;
    {
      BufferPool buffers;
      for (int i = 0; i < 4; ++i) {
        device::StreamUses uses;
        const c10::StreamGuard on_one(i % 2 == 0 ? *one : *other);
        const auto buffer = buffers.allocate(1000, at::TensorOptions(at::kFloat).device(device));
        buffer.fill_(i);
        uses.add(device);
        const auto& there = i % 2 == 0 ? other : one;
        device::wait_stream(kTest, there, device::current_stream(device));
        const c10::StreamGuard on_other(*there);
        sums.push_back(buffer.sum());
        uses.add(device);
        buffers.release(buffer, uses.record());
        EXPECT_EQ(buffers.bytes(), 4000) << "memory was not taken again";
      }
      sim::reset_stats();
    }
    EXPECT_EQ(sim::stats().all_host_waits(), 0);
    for (const auto& stream : {one, other}) device::wait_stream(kTest, device::current_stream(device), stream);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(sums[static_cast<size_t>(i)].item<float>(), 1000.F * i) << "seed " << seed;
  }
}

/// The most that was allocated on each device.
std::vector<int64_t> peaks(const Managed& how, uint64_t seed) {
  sim::set_seed(seed);
  std::vector<int64_t> peaks(2);
  EXPECT_EQ(comm::run_device_world(2, {.device_backend = true},
                                   [&](const comm::Communicator& group, at::Device device) {
                                     at::set_num_threads(1);
                                     auto* allocator = c10::getDeviceAllocator(device.type());
                                     allocator->resetPeakStats(device.index());
                                     Training(group, device, how).run();
                                     peaks[static_cast<size_t>(group.rank())] =
                                         allocator->getDeviceStats(device.index()).allocated_bytes[0].peak;
                                   }),
            "");
  return peaks;
}

TEST(DeviceMemory, IsAsMuchWheneverWorkRuns) {
  sim::install();
  for (const char* name : {"ddp", "zero2", "fsdp"}) {
    const Managed how{.name = name, .streams = Streams::two, .evaluates = true};
    std::set<std::vector<int64_t>> all;
    for (uint64_t seed = 1; seed < 6; ++seed) all.insert(peaks(how, seed));
    EXPECT_EQ(all.size(), 1U) << name;
  }
}

TEST(DeviceMemory, IsNeverRecordedForAStream) {
  sim::install();
  static std::atomic<int> recorded;  // ranks are threads
  recorded = 0;
  device::set_sync_filter([](const device::SyncPoint& point, device::SyncKind what) {
    recorded += what == device::SyncKind::record_stream && std::string(point.name).find("batches") != 0;
    return true;
  });
  (void)peaks({.name = "fsdp", .streams = Streams::two}, 1);
  device::set_sync_filter(nullptr);
  EXPECT_EQ(recorded, 0);
}

}  // namespace
}  // namespace muster::parallel::on_device
