#include "device_mover.h"

#include "muster/tree/detail/move.h"

namespace muster::data {
namespace {

constexpr device::Site kOwnStream{"batches: copies run on a stream of their own"};
constexpr device::Site kCopy{"batches: from pinned memory to the device"};
constexpr device::Site kArrived{"batches: the current stream reads after the copy"};
constexpr device::Site kMemory{"batches: memory of the copying stream is in use by the current one"};

}  // namespace

DeviceMover::DeviceMover(at::Device device, bool non_blocking)
    : device_(device), non_blocking_(non_blocking), stream_(device::stream_from_pool(device)) {}

void DeviceMover::start(BatchBox& box) {
  if (!stream_) return;
  const device::StreamScope on_own_stream(kOwnStream, stream_);
  const bool later = non_blocking_ && device::passes(kCopy, device::Ordering::async_copy);
  box.visit([&](at::Tensor& t) { t = tree::moved(t, device_, later); });
  done_ = device::record(device_);
}

void DeviceMover::finish(BatchBox& box) {
  if (!stream_) return;
  device::stream_wait(kArrived, done_, device_);
  // The memory came from the copying stream's pool; the allocator must learn that the current stream uses it too.
  box.visit([this](at::Tensor& t) { device::record_stream(kMemory, t, device_); });
}

}  // namespace muster::data
