#pragma once  // for other rooms

#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/Device.h>

namespace muster::device {

/// Memory of a device, in bytes, as its allocator counts it for this process.
struct MemoryUse {
  int64_t allocated = 0;      ///< bytes in tensors now
  int64_t peak = 0;           ///< largest number of bytes that were in tensors at one time
  int64_t reserved = 0;       ///< bytes taken from the device, free pieces included
  int64_t reserved_peak = 0;  ///< largest number of bytes that were taken at one time
};

/// nullopt for the CPU, and for a device whose allocator keeps no statistics or is not initialized yet.
std::optional<MemoryUse> memory_use(at::Device device);

/// "sim:0 holds 12.0 MiB in tensors now and held 15.5 MiB at most; 20.0 MiB are reserved, and 20.0 MiB were at most";
/// an empty string if nothing is known.
std::string describe_memory(at::Device device);

/// Bytes of pinned host memory, free pieces included, that the allocator for copies to this kind of device holds; 0 if
/// it keeps no statistics.
int64_t pinned_bytes(at::Device device);

/// The device of this process: the current one of the accelerator, else the CPU.
at::Device current();

}  // namespace muster::device
