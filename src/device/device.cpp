#include "device/device.h"

#include <dlfcn.h>

#include <ATen/DeviceAccelerator.h>

#include "base/accelerator_name.h"
#include "base/text.h"
#include "muster/base/error.h"

namespace muster::device {
namespace {

std::optional<at::DeviceType> accelerator() {
  const auto kind = at::accelerator::getAccelerator(false);
  return kind && at::accelerator::deviceCount() > 0 ? kind : std::nullopt;
}

[[noreturn]] void refuse(std::string_view name, const std::string& why) {
  throw ConfigError("MU101", "device \"" + std::string(name) + "\" " + why +
                                 ". Available here: " + joined(available()) +
                                 "; \"auto\" takes the accelerator if there is one, \"gpu\" any accelerator");
}

/// A device name split in two: "cuda:1" is {"cuda", 1}, "cuda" is {"cuda", none}.
struct ParsedName {
  std::string kind;
  std::optional<int> index;
};

ParsedName parse(std::string_view name) {
  const auto colon = name.find(':');
  ParsedName parsed{std::string(name.substr(0, colon)), std::nullopt};
  if (colon == std::string_view::npos) return parsed;
  const auto digits = name.substr(colon + 1);
  const auto index = digits.size() < 5 ? parse_number<unsigned>(digits) : std::nullopt;
  if (!index) refuse(name, "has no number after the colon");
  parsed.index = static_cast<int>(*index);
  return parsed;
}

std::string kind_name(at::DeviceType kind) { return c10::DeviceTypeName(kind, /*lower_case=*/true); }

constexpr const char* kDriver = "libcuda.so.1";

/// A function of the driver's library. All of these functions return 0 on success.
template <class... Arguments>
auto function_of_driver(const char* name, int how) {
  using Function = int (*)(Arguments...);
  void* library = ::dlopen(kDriver, how | RTLD_LAZY | RTLD_LOCAL);
  return library ? reinterpret_cast<Function>(::dlsym(library, name)) : nullptr;
}

}  // namespace

bool is_accelerator(at::DeviceType kind) { return accelerator() == kind; }

int count() { return accelerator() ? at::accelerator::deviceCount() : 0; }

std::vector<std::string> available() {
  std::vector<std::string> names{"cpu"};
  for (int i = 0; i < count(); ++i) names.push_back(kind_name(*accelerator()) + ":" + std::to_string(i));
  return names;
}

at::Device choose(std::string_view name, int local_rank) {
  require_one_device(name, "accelerator");
  const auto kind = accelerator();
  const auto [wanted, index] = parse(name);
  if (wanted == "cpu" || (wanted == "auto" && !kind)) return at::Device(at::kCPU);
  const bool any = wanted == "auto" || wanted == "gpu" || wanted == "accelerator";
  if (is_xla_device(wanted) && !(kind && wanted == kind_name(*kind)))
    throw ConfigError("MU497", "device \"" + std::string(name) + "\": " + no_xla_device(wanted));
  if (!kind)
    refuse(name, any ? "is not available: there is no accelerator on this machine" : "is unknown or not available");
  if (!any && wanted != kind_name(*kind)) refuse(name, "is unknown or not available");
  if (index.value_or(0) >= count()) refuse(name, "has an index beyond the last device");
  return at::Device(*kind, static_cast<c10::DeviceIndex>(index.value_or(local_rank % count())));
}

at::Device current() {
  const auto kind = at::accelerator::getAccelerator(false);
  if (!kind || count() == 0) return at::kCPU;
  return at::Device(*kind, at::accelerator::getDeviceIndex());
}

void set_current(at::Device device) {
  if (!device.is_cpu()) at::accelerator::setDeviceIndex(device.index());
}

void synchronize(at::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

bool uses_pinned_memory(at::Device device) {
  const auto kind = accelerator();
  return kind && device.type() == *kind && *kind != at::kMPS;
}

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
