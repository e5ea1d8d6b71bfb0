#pragma once  // for other rooms

#include <optional>
#include <string>

#include <c10/core/Device.h>

/// Queries CUDA's driver. Neither Muster nor every LibTorch links the driver's library, so it is opened when first
/// needed.
namespace muster::device {

/// The CUDA version that the driver supports, such as "12.8". nullopt where there is no driver.
std::optional<std::string> cuda_version_of_driver();

/// The address of a CUDA device on the PCI bus, such as "0000:3b:00.0". Empty for other devices, and as long as
/// LibTorch has not begun to use CUDA in this process.
std::string pci_address(at::Device device);

}  // namespace muster::device
