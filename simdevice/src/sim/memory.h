#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "sim/order.h"

namespace muster::sim {

// Device memory is a range of addresses that nobody may access. Its bytes lie at a constant distance, where only
// kernels look. So nothing is unprotected while kernels run, and other threads still fault.
// Why: docs/decisions/0133-a-simulated-accelerator.md.

constexpr size_t kBytesOfAddresses = size_t{1} << 34;  ///< per device; pages are allocated on first write
constexpr int kPoison = 0xFF;                          ///< byte in freed memory: NaN as floating point, -1 as an index

/// Reserves the addresses and catches faults there. Called once.
void reserve_addresses(int devices);
bool is_device_pointer(const void* pointer);
int device_of_pointer(const void* pointer);
char* device_address(int device);  ///< the device's first address
/// The address at which kernels find the bytes of a device pointer; null stays null.
void* kernel_pointer(const void* device_pointer);

/// Blocks are reused at once on the stream on which they were allocated, as by CUDA's caching allocator, and filled
/// with kPoison on it when they are freed.
c10::DeviceAllocator& device_allocator();

// Pinned memory is mapped twice as well. While a command that the host has not waited for accesses a block, the host
// may not access it: the access faults, is recorded as a race, and continues.

at::HostAllocator& host_allocator();
bool is_pinned(const void* pointer);
void reserve_pinned_addresses();
/// The address at which kernels find the bytes of a pinned pointer.
void* pinned_kernel_pointer(const void* pointer);

// Requires the machine's lock.
/// Call it after a command with these accesses was added to the order. Those of pinned memory forbid the host's access.
void protect_pinned(const std::vector<Access>& accesses);
/// The host has waited: commands that it has waited for no longer forbid its accesses.
void release_pinned();
/// Handles a fault of the host at this address. Returns false if it is not in pinned memory. Called in a signal
/// handler.
bool admit_pinned(const void* address, bool writes);

}  // namespace muster::sim
