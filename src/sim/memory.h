#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "sim/order.h"

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

// Pinned memory is mapped twice as well. While a command that the host has not waited for accesses a block, the host
// may not: it faults, which is noted as a race, and goes on.

at::HostAllocator& host_allocator();
bool is_pinned(const void* pointer);
void reserve_pinned_addresses();
/// Where kernels find the bytes of a pinned pointer.
void* pinned_kernel_pointer(const void* pointer);

// Under the machine's lock.
/// The command that was added to the order last has these accesses: those of pinned memory end the host's.
void protect_pinned(const std::vector<Access>& accesses);
/// The host has waited: what it has waited for no longer ends its accesses.
void release_pinned();
/// The host's access of this address faulted. False if that is none of pinned memory. In a handler of signals.
bool admit_pinned(const void* address, bool writes);

}  // namespace muster::sim
