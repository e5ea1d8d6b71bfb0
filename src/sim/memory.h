#pragma once

#include <cstddef>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace muster::sim {

// Device memory is a range of addresses that nobody may access; its bytes lie at a constant distance, where only
// kernels look. So nothing is unprotected while kernels run, and other threads still fault.

constexpr size_t kBytesOfAddresses = size_t{1} << 34;  ///< per device; pages come when they are written
constexpr int kPoison = 0xFF;                          ///< NaN as a floating-point number, -1 as an index

/// Reserves the addresses and catches faults there. Once.
void reserve_addresses(int devices);
bool is_device_pointer(const void* pointer);
int device_of_pointer(const void* pointer);
char* device_address(int device);  ///< its first
/// Where kernels find the bytes of a device pointer; null stays null.
void* kernel_pointer(const void* device_pointer);

/// Blocks are reused at once on the stream that they were allocated on, as by CUDA's caching allocator, and poisoned
/// there when they are freed.
c10::DeviceAllocator& device_allocator();

/// Pinned host memory.
at::HostAllocator& host_allocator();
bool is_pinned(const void* pointer);

}  // namespace muster::sim
