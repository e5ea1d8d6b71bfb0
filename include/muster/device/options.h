#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace muster {

namespace comm {
struct BackendEntry;
}

namespace device {
inline constexpr std::array<std::string_view, 3> kKeepMemoryNames{"auto", "on", "off"};

[[noreturn]] void unknown_keep_memory(std::string_view name);

constexpr std::size_t keep_memory_named(std::string_view name) {
  for (std::size_t i = 0; i < kKeepMemoryNames.size(); ++i)
    if (kKeepMemoryNames[i] == name) return i;
  unknown_keep_memory(name);  // not constexpr: another literal does not compile
}
}  // namespace device

/// Whether a process keeps the memory of freed CPU tensors for the next step instead of returning it to the system:
/// "on", "off", or "auto". "auto" is on in ranks that a launcher started, unless the process has a memory limit
/// (RLIMIT_DATA, RLIMIT_AS) or is near its container's limit; it is off in a process started alone.
class KeepMemory {
 public:
  consteval KeepMemory(const char* name) : place_(device::keep_memory_named(name)) {}
  /// Throws: ConfigError (MU002), listing the names, for any other word.
  static KeepMemory parse(std::string_view name) { return KeepMemory(device::keep_memory_named(name)); }

  constexpr std::string_view name() const noexcept { return device::kKeepMemoryNames[place_]; }
  friend constexpr bool operator==(KeepMemory, KeepMemory) = default;

 private:
  constexpr explicit KeepMemory(std::size_t place) : place_(place) {}
  std::size_t place_;
};

/// The backend that carries tensors of the accelerator between ranks.
/// "auto": NCCL, if the ranks have CUDA devices and Muster's NCCL library is installed; otherwise tensors are staged
/// through host memory, and plan() reports it. "none": they are staged. Another name, such as "nccl": the backend in
/// the shared library libmuster_NAME.so. A path with a slash: the backend in that library. Or a custom entry, which is
/// not used if ranks have another type of device.
class DeviceBackend {
 public:
  DeviceBackend() = default;
  DeviceBackend(const char* name) : name_(name) {}
  DeviceBackend(std::string name) : name_(std::move(name)) {}
  /// A custom entry; null is "none".
  template <class Entry>
  DeviceBackend(std::shared_ptr<Entry> own) : name_(own ? "custom" : "none"), own_(std::move(own)) {}

  const std::string& name() const noexcept { return name_; }
  const std::shared_ptr<const comm::BackendEntry>& own() const noexcept { return own_; }
  friend bool operator==(const DeviceBackend&, const DeviceBackend&) = default;

 private:
  std::string name_ = "auto";
  std::shared_ptr<const comm::BackendEntry> own_;
};

}  // namespace muster
