#include "muster/device/detail/order.h"

#include <atomic>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace muster::device {
namespace {

std::atomic<OrderFilter> order_filter{nullptr};

c10::Stream current_stream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

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

Event record(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  Event event(std::in_place, device.type());
  event->record(current_stream(device));
  return event;
}

namespace detail {

void stream_wait(const Site& site, const c10::Event& event, at::Device device) {
  if (passes(site, Ordering::stream_wait)) event.block(current_stream(device));
}

void host_wait(const Site& site, const c10::Event& event) {
  if (passes(site, Ordering::host_wait)) event.synchronize();
}

}  // namespace detail

void async_copy(const Site& site, const at::Tensor& to, const at::Tensor& from) {
  const bool host_only = to.is_cpu() && from.is_cpu();
  to.copy_(from, /*non_blocking=*/!host_only && passes(site, Ordering::async_copy));
}

void record_stream(const Site& site, const at::Tensor& tensor, at::Device device) {
  if (device.is_cpu() || !tensor.defined() || tensor.device() != device) return;
  if (passes(site, Ordering::record_stream)) tensor.record_stream(current_stream(device));
}

}  // namespace muster::device
