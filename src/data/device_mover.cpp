#include "device_mover.h"

#include <cstddef>
#include <utility>

#include "muster/tree/detail/move.h"
#include "own_tensors.h"

namespace muster::data {
namespace {

constexpr device::SyncPoint kOwnStream{"batches: copies run on a stream of their own"};
constexpr device::SyncPoint kMade{"batches: copies come after what a worker did on the device"};
constexpr device::SyncPoint kCopy{"batches: from pinned memory to the device"};
constexpr device::SyncPoint kArrived{"batches: the current stream reads after the copy"};
constexpr device::SyncPoint kMemory{"batches: memory of the copying stream is in use by the current one"};
constexpr device::SyncPoint kGiven{"batches: a dataset writes pinned memory of its own after the copy"};
constexpr device::SyncPoint kReuse{"batches: pinned memory is written again after its copy"};

/// Limit on kept boxes. Usually copies are faster than steps; if they are not, further memory goes to LibTorch's
/// allocator.
constexpr std::size_t kMostKept = 8;

}  // namespace

DeviceMover::DeviceMover(at::Device device, device::Stream stream, bool pinned, bool non_blocking)
    : device_(device), non_blocking_(non_blocking), pinned_(pinned), stream_(stream) {}

BatchCopy DeviceMover::start(BatchBox& box, const device::Event& made) {
  BatchCopy copy;
  if (!stream_) return copy;
  const device::StreamScope on_own_stream(kOwnStream, stream_);
  device::stream_wait(kMade, made, device_);
  const bool later = non_blocking_ && device::passes(kCopy, device::SyncKind::async_copy);
  bool given = false;
  box.visit([&](at::Tensor& t) {
    const auto* before = t.unsafeGetTensorImpl();
    if (pinned_ && t.defined() && t.is_cpu()) t = t.pin_memory();
    const bool ours = t.defined() && is_ours_alone(t);
    given = given || (!ours && t.unsafeGetTensorImpl() == before && t.defined() && t.is_cpu() && t.is_pinned());
    copy.sources.push_back(pinned_ && ours ? t : at::Tensor());
    t = tree::moved(t, device_, later);
  });
  copy.done = device::record(device_);
  if (given) last_copy_ = device::record(device_);
  return copy;
}

void DeviceMover::wait_for_given() { device::host_wait(kGiven, std::exchange(last_copy_, std::nullopt)); }

void DeviceMover::finish(BatchBox& box, const BatchCopy& copy) {
  if (!stream_) return;
  device::stream_wait(kArrived, copy.done, device_);
  // The memory came from the copying stream's pool; the allocator must learn that the current stream uses it too.
  box.visit([this](at::Tensor& t) { device::record_stream(kMemory, t, device_); });
}

void DeviceMover::keep(std::unique_ptr<BatchBox> box, BatchCopy copy) {
  std::size_t next = 0;
  box->visit([&](at::Tensor& t) {
    t = next < copy.sources.size() ? std::move(copy.sources[next]) : at::Tensor();
    ++next;
  });
  // The user may have changed the number of tensors.
  if (next == copy.sources.size() && kept_.size() < kMostKept) kept_.push_back({std::move(box), std::move(copy.done)});
}

std::unique_ptr<BatchBox> DeviceMover::take() {
  if (kept_.empty() || !device::query(kReuse, kept_.front().done)) return nullptr;
  auto box = std::move(kept_.front().box);
  kept_.pop_front();
  return box;
}

}  // namespace muster::data
