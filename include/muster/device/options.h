#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "muster/base/word.h"

namespace muster {

namespace comm {
struct BackendEntry;
}

namespace device {
struct KeepMemoryWords {
  static constexpr std::string_view kAll[] = {"auto", "on", "off"};
};
}  // namespace device

/// Whether a process keeps the memory of freed CPU tensors for the next step instead of returning it to the system:
/// "on", "off", or "auto". "auto" is on in ranks that a launcher started, unless the process has a memory limit
/// (RLIMIT_DATA, RLIMIT_AS) or is near its container's limit; it is off in a process started alone.
class KeepMemory : public Word<device::KeepMemoryWords> {
 public:
  consteval KeepMemory(const char* name) : Word(name) {}
  /// Throws: ConfigError (MU002), listing the names, for any other word.
  static KeepMemory parse(std::string_view name);
  constexpr std::string_view name() const noexcept { return text(); }

 private:
  constexpr explicit KeepMemory(Word word) : Word(word) {}
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
