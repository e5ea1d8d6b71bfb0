#pragma once  // for other rooms

#include <memory>
#include <string>

#include "muster/comm/rendezvous.h"
#include "muster/device/options.h"

namespace muster::comm {

/// The backend for a device, and the text that plan() shows about it.
struct FoundBackend {
  std::shared_ptr<const BackendEntry> entry;  ///< null: tensors of the device are staged through host memory
  std::string note;
};

/// The backend that the option names for tensors of `device`. An object that was opened stays open. If there is none
/// yet, these folders of this machine are searched in order: those of MUSTER_BACKEND_PATH, lib next to the folder of
/// the program or of libmuster.so, that folder itself, and the dynamic linker's.
/// Throws: ConfigError (MU558) if there is no object of that name, (MU562) if it cannot be opened, is not one of
/// Muster's or was built with other versions, (MU563) if it is for another type of device than the ranks have.
/// Why: docs/decisions/0151-a-backend-of-a-device-is-an-object.md.
FoundBackend find_device_backend(const DeviceBackend& wanted, c10::DeviceType device);

/// The path of libmuster_NAME.so in the folders of find_device_backend(), except the dynamic linker's. Empty if there
/// is none. Opens nothing.
std::string place_of_object(const std::string& name);

}  // namespace muster::comm
