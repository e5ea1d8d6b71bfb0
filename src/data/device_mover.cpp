#include "device_mover.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "muster/tree/detail/move.h"

namespace muster::data {

DeviceMover::DeviceMover(at::Device device, bool non_blocking) : device_(device), non_blocking_(non_blocking) {
  // The streams of any kind of device; those of c10::cuda would tie us to CUDA.
  if (!device.is_cpu()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false);
}

void DeviceMover::start(BatchBox& box) {
  if (!stream_) return;
  const c10::StreamGuard on_own_stream(*stream_);
  box.visit([this](at::Tensor& t) { t = tree::moved(t, device_, non_blocking_); });
  done_.emplace(device_.type());
  done_->record(*stream_);
}

void DeviceMover::finish(BatchBox& box) {
  if (!stream_) return;
  const auto current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  if (done_) done_->block(current);
  // The memory came from the copying stream's pool; the allocator must learn that the current stream uses it too.
  box.visit([&](at::Tensor& t) {
    if (t.defined() && t.device() == device_) t.record_stream(current);
  });
}

}  // namespace muster::data
