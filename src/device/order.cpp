#include "muster/device/detail/order.h"

#include <algorithm>
#include <atomic>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace muster::device {
namespace {

std::atomic<OrderFilter> order_filter{nullptr};

c10::Stream current_of(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

c10::Event recorded(c10::Stream stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

}  // namespace

void set_order_filter(OrderFilter filter) noexcept { order_filter.store(filter); }

bool passes(const Site& site, Ordering what) {
  const auto filter = order_filter.load(std::memory_order_relaxed);
  return !filter || filter(site, what);
}

Stream stream_from_pool(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  // The streams of any kind of device; those of c10::cuda would tie us to CUDA.
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

namespace detail {

void stream_wait(const Site& site, const c10::Event& event, at::Device device) {
  if (passes(site, Ordering::stream_wait)) event.block(current_of(device));
}

void stream_wait(const Site& site, const StreamEvents& events, at::Device device) {
  if (!passes(site, Ordering::stream_wait)) return;
  const auto current = current_of(device);
  for (const auto& [stream, event] : events)
    if (stream != current) event.block(current);
}

void wait_stream(const Site& site, c10::Stream waiting, c10::Stream awaited) {
  if (waiting != awaited && passes(site, Ordering::stream_wait)) recorded(awaited).block(waiting);
}

void host_wait(const Site& site, const c10::Event& event) {
  if (passes(site, Ordering::host_wait)) event.synchronize();
}

bool query(const Site& site, const c10::Event& event) { return !passes(site, Ordering::query) || event.query(); }

}  // namespace detail

bool StreamUses::add_current(at::Device device) {
  const auto current = current_of(device);
  if (std::find(streams_.begin(), streams_.end(), current) != streams_.end()) return false;
  streams_.push_back(current);
  return true;
}

void StreamUses::wait_for_others(const Site& site, at::Device device) {
  const auto current = current_of(device);
  for (const auto& stream : streams_) detail::wait_stream(site, current, stream);
  streams_.assign(1, current);
}

StreamEvents StreamUses::record() {
  StreamEvents events;
  for (const auto& stream : streams_) events.push_back({stream, recorded(stream)});
  streams_.clear();
  return events;
}

void StreamUses::wait_for_current(const Site& site, at::Device device) const {
  for (const auto& stream : streams_) detail::wait_stream(site, stream, current_of(device));
}

void async_copy(const Site& site, const at::Tensor& to, const at::Tensor& from) {
  const bool host_only = to.is_cpu() && from.is_cpu();
  to.copy_(from, /*non_blocking=*/!host_only && passes(site, Ordering::async_copy));
}

void record_stream(const Site& site, const at::Tensor& tensor, at::Device device) {
  if (device.is_cpu() || !tensor.defined() || tensor.device() != device) return;
  if (passes(site, Ordering::record_stream)) tensor.record_stream(current_of(device));
}

}  // namespace muster::device
