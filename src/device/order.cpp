#include "device/order.h"

#include <algorithm>
#include <atomic>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace muster::device {
namespace {

std::atomic<SyncFilter> order_filter{nullptr};

c10::Stream current_of(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

c10::Event recorded(c10::Stream stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

}  // namespace

void set_sync_filter(SyncFilter filter) noexcept { order_filter.store(filter); }

bool passes(const SyncPoint& point, SyncKind what) {
  const auto filter = order_filter.load(std::memory_order_relaxed);
  return !filter || filter(point, what);
}

Stream stream_from_pool(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  // VirtualGuardImpl has streams of any kind of device. c10::cuda would tie us to CUDA.
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false);
}

Stream current_stream(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return current_of(device);
}

Event record(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return recorded(current_of(device));
}

void stream_wait(const SyncPoint& point, const Event& event, at::Device device) {
  if (event && passes(point, SyncKind::stream_wait)) event->block(current_of(device));
}

void stream_wait(const SyncPoint& point, const StreamEvents& events, at::Device device) {
  if (events.empty() || !passes(point, SyncKind::stream_wait)) return;
  const auto current = current_of(device);
  for (const auto& [stream, event] : events)
    if (stream != current) event.block(current);
}

void wait_stream(const SyncPoint& point, const Stream& waiting, const Stream& awaited) {
  if (waiting && awaited && waiting != awaited && passes(point, SyncKind::stream_wait))
    recorded(*awaited).block(*waiting);
}

void host_wait(const SyncPoint& point, const Event& event) {
  if (event && passes(point, SyncKind::host_wait)) event->synchronize();
}

bool query(const SyncPoint& point, const Event& event) {
  return !event || !passes(point, SyncKind::query) || event->query();
}

bool StreamUses::add(at::Device device) {
  if (device.is_cpu()) return false;
  const auto current = current_of(device);
  if (std::find(streams_.begin(), streams_.end(), current) != streams_.end()) return false;
  streams_.push_back(current);
  return true;
}

void StreamUses::wait(const SyncPoint& point, at::Device device) {
  if (streams_.empty()) return;
  const auto current = current_of(device);
  for (const auto& stream : streams_) wait_stream(point, current, stream);
  streams_.assign(1, current);
}

StreamEvents StreamUses::record() {
  StreamEvents events;
  for (const auto& stream : streams_) events.push_back({stream, recorded(stream)});
  streams_.clear();
  return events;
}

void StreamUses::wait_for_current(const SyncPoint& point, at::Device device) const {
  for (const auto& stream : streams_) wait_stream(point, stream, current_of(device));
}

void async_copy(const SyncPoint& point, const at::Tensor& to, const at::Tensor& from) {
  const bool host_only = to.is_cpu() && from.is_cpu();
  to.copy_(from, /*non_blocking=*/!host_only && passes(point, SyncKind::async_copy));
}

void record_stream(const SyncPoint& point, const at::Tensor& tensor, at::Device device) {
  if (device.is_cpu() || !tensor.defined() || tensor.device() != device) return;
  if (passes(point, SyncKind::record_stream)) tensor.record_stream(current_of(device));
}

}  // namespace muster::device
