#include "device/cuda_driver.h"

#include <dlfcn.h>

namespace muster::device {
namespace {

constexpr const char* kDriver = "libcuda.so.1";

/// A function of the driver's library. All of these functions return 0 on success.
template <class... Arguments>
auto function_of_driver(const char* name, int how) {
  using Function = int (*)(Arguments...);
  void* library = ::dlopen(kDriver, how | RTLD_LAZY | RTLD_LOCAL);
  return library ? reinterpret_cast<Function>(::dlsym(library, name)) : nullptr;
}

}  // namespace

std::optional<std::string> cuda_version_of_driver() {
  int version = 0;
  const auto ask = function_of_driver<int*>("cuDriverGetVersion", 0);
  if (!ask || ask(&version) != 0) return std::nullopt;
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string pci_address(at::Device device) {
  if (!device.is_cuda()) return "";
  // If LibTorch has not opened the driver's library in this process, the driver is not initialized.
  const auto device_at = function_of_driver<int*, int>("cuDeviceGet", RTLD_NOLOAD);
  const auto address_of = function_of_driver<char*, int, int>("cuDeviceGetPCIBusId", RTLD_NOLOAD);
  int handle = 0;
  char address[32] = {};
  const bool found = device_at && address_of && device_at(&handle, device.index()) == 0 &&
                     address_of(address, sizeof address, handle) == 0;
  return found ? std::string(address) : std::string();
}

}  // namespace muster::device
