#include "muster/device/detail/order.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace muster::device {
namespace {

constexpr Site kSite{"a test: something waits for something"};
int asked = 0;

TEST(Order, AsksAndQueuesNothingOnTheCpu) {
  set_order_filter([](const Site&, Ordering) { return ++asked < 0; });
  const at::Device cpu(at::kCPU);
  const Stream stream = stream_from_pool(cpu);
  const Event event = record(cpu);
  EXPECT_FALSE(stream);
  EXPECT_FALSE(event);
  EXPECT_FALSE(current_stream(cpu));
  wait_stream(kSite, stream, stream);
  StreamUses uses;
  EXPECT_FALSE(uses.add(cpu));
  uses.wait(kSite, cpu);
  uses.wait_for_current(kSite, cpu);
  stream_wait(kSite, uses.record(), cpu);
  const StreamScope on_stream(kSite, stream);
  const DeviceScope on_device(kSite, cpu);
  stream_wait(kSite, event, cpu);
  host_wait(kSite, event);
  const at::Tensor from = at::zeros({3}), to = at::zeros({3});
  from.fill_(2);
  async_copy(kSite, to, from);
  record_stream(kSite, to, cpu);
  EXPECT_EQ(to.sum().item<float>(), 6);
  EXPECT_EQ(asked, 0);
  EXPECT_FALSE(passes(kSite, Ordering::host_wait));
  set_order_filter(nullptr);
  EXPECT_TRUE(passes(kSite, Ordering::host_wait));
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace muster::device
