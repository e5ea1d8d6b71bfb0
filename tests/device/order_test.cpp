#include "device/order.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace muster::device {
namespace {

constexpr SyncPoint kPoint{"a test: something waits for something"};
int asked = 0;

TEST(Order, AsksAndQueuesNothingOnTheCpu) {
  set_sync_filter([](const SyncPoint&, SyncKind) { return ++asked < 0; });
  const at::Device cpu(at::kCPU);
  const Stream stream = stream_from_pool(cpu);
  const Event event = record(cpu);
  EXPECT_FALSE(stream);
  EXPECT_FALSE(event);
  EXPECT_FALSE(current_stream(cpu));
  wait_stream(kPoint, stream, stream);
  StreamUses uses;
  EXPECT_FALSE(uses.add(cpu));
  uses.wait(kPoint, cpu);
  uses.wait_for_current(kPoint, cpu);
  stream_wait(kPoint, uses.record(), cpu);
  const StreamScope on_stream(kPoint, stream);
  const DeviceScope on_device(kPoint, cpu);
  stream_wait(kPoint, event, cpu);
  host_wait(kPoint, event);
  const at::Tensor from = at::zeros({3}), to = at::zeros({3});
  from.fill_(2);
  async_copy(kPoint, to, from);
  record_stream(kPoint, to, cpu);
  EXPECT_EQ(to.sum().item<float>(), 6);
  EXPECT_EQ(asked, 0);
  EXPECT_FALSE(passes(kPoint, SyncKind::host_wait));
  set_sync_filter(nullptr);
  EXPECT_TRUE(passes(kPoint, SyncKind::host_wait));
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace muster::device
