#include <memory>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "sim/machine.h"
#include "sim/memory.h"
#include "sim/registration.h"

namespace muster::sim {
namespace {

/// Devices, streams and events behind LibTorch's interface. An event's handle is a pointer to a shared event, since
/// commands outlive the handle.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device to) const override { return device(exchange_device(index(to))); }
  c10::Device getDevice() const override { return device(current_device()); }
  void setDevice(c10::Device to) const override { exchangeDevice(to); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { exchangeDevice(to); }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(machine().options().devices);
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device of) const override { return current_stream(index(of)); }
  c10::Stream getDefaultStream(c10::Device of) const override { return stream(index(of), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override { return machine().pool_stream(index(of)); }
  c10::Stream getNewStream(c10::Device of, int) const override { return machine().pool_stream(index(of)); }
  c10::Stream exchangeStream(c10::Stream to) const override { return exchange_stream(to); }
  bool queryStream(const c10::Stream& stream) const override { return machine().is_idle(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { machine().synchronize(stream, "stream"); }
  void synchronizeDevice(c10::DeviceIndex index) const override { machine().synchronize_device(index, "device"); }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    device_allocator().recordStream(pointer, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index, c10::EventFlag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "an event of ", device(index), " is recorded on ",
                stream);
    if (!*event) *event = new EventPtr(std::make_shared<Event>());
    machine().record(shared(*event), stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) machine().block(mark(event), stream);
  }
  bool queryEvent(void* event) const override { return !event || machine().query(mark(event)); }
  void synchronizeEvent(void* event) const override {
    if (event) machine().synchronize(mark(event), "event");
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventPtr*>(event);
  }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 0; }

 private:
  static Machine& machine() { return Machine::get(); }
  static int index(c10::Device of) { return of.has_index() ? of.index() : current_device(); }
  static EventPtr& shared(void* event) { return *static_cast<EventPtr*>(event); }
  static Mark mark(void* event) {
    const auto lock = machine().lock();
    return {shared(event), shared(event)->asked, shared(event)->clock};
  }
};

}  // namespace

void register_guard() {
  static const c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::PrivateUse1, new Guard);
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &device_allocator());
  at::setHostAllocator(c10::DeviceType::PrivateUse1, &host_allocator());
}

}  // namespace muster::sim
