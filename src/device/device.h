#pragma once  // for other rooms

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

/// The accelerator of any kind: the one that this LibTorch was built for and finds on the machine.
namespace muster::device {

/// The device of a local rank.
/// "auto": the accelerator if there is one, else the CPU. "cpu". "gpu" or "accelerator": the accelerator. A kind such
/// as "cuda", "xpu" or "mps": that accelerator. "cuda:1": exactly this device, for any rank.
/// Without an index, rank r gets device r modulo the number of devices.
/// Throws: ConfigError (MU101), listing what is available, for a name that is unknown or not available here; (MU497)
/// for a device of PyTorch/XLA or Neuron, unless a backend of that name is loaded.
at::Device choose(std::string_view name, int local_rank = 0);

/// What choose() accepts on this machine: {"cpu"} or {"cpu", "cuda:0", "cuda:1", ...}.
std::vector<std::string> available();

/// Number of accelerators on this machine; 0 if it has none.
int count();

/// Whether tensors on devices of this kind are on the accelerator of this machine.
bool is_accelerator(at::DeviceType kind);

/// The device of this process: the current one of the accelerator, else the CPU.
at::Device current();

/// Makes the device the calling thread's current device. Does nothing for the CPU.
void set_current(at::Device device);

/// Waits until all work queued on the device is done. Does nothing for the CPU.
void synchronize(at::Device device);

/// Whether copies to this device benefit from pinned host memory.
bool uses_pinned_memory(at::Device device);

// Queries of CUDA's driver. Neither Muster nor every LibTorch links the driver's library, so it is opened when first
// needed.

/// The CUDA version that the driver supports, such as "12.8". nullopt where there is no driver.
std::optional<std::string> cuda_version_of_driver();

/// The address of a CUDA device on the PCI bus, such as "0000:3b:00.0". Empty for other devices, and as long as
/// LibTorch has not begun to use CUDA in this process.
std::string pci_address(at::Device device);

}  // namespace muster::device
