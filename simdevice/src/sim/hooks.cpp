#include <algorithm>
#include <vector>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include "sim/generator.h"
#include "sim/machine.h"
#include "sim/memory.h"
#include "sim/registration.h"

namespace muster::sim {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(Machine::get().options().devices);
  }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchange_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(index));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? getCurrentDevice() : exchangeDevice(index);
  }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &host_allocator(); }
  at::Device getDeviceFromPtr(void* pointer) const override {
    TORCH_CHECK(is_device_pointer(pointer), "this is not memory of the simulated accelerator");
    return device(device_of_pointer(pointer));
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index < 0 ? current_device() : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device() : index);
  }

  /// Resizes the storage in the order of the current stream, as `resize_` and similar operators require.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable() && impl->allocator(), "this storage of the simulated accelerator cannot be resized");
    const c10::DeviceGuard guard(storage.device());
    auto memory = impl->allocator()->allocate(bytes);
    if (const auto kept = std::min(bytes, impl->nbytes()); kept > 0)
      device_allocator().copy_data(memory.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(memory));
    impl->set_nbytes(bytes);
  }
};

}  // namespace

const at::Generator& default_generator(int index) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int i = 0; i < Machine::get().options().devices; ++i) made->push_back(at::make_generator<Generator>(i));
    return made;
  }();
  return all->at(static_cast<size_t>(index));
}

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace muster::sim
