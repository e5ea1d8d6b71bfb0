#pragma once  // for other rooms

#include <memory>
#include <string>

#include "muster/comm/rendezvous.h"
#include "muster/device/options.h"

namespace muster::comm {

/// A backend of a device, and what plan() says about it.
struct FoundBackend {
  std::shared_ptr<const BackendEntry> entry;  ///< null: tensors of the device are staged
  std::string note;
};

/// The backend that the option names for tensors of `device`. An object that has been opened stays open. Where there is
/// none it takes this machine's folders, in order: those of MUSTER_BACKEND_PATH, lib beside the folder of the program
/// or of libmuster.so, that folder itself, and the dynamic linker's.
/// Throws: ConfigError (MU558) if there is no object of that name, (MU562) if it cannot be opened, is none of Muster's
/// or was built with other versions, (MU563) if it is for another type of device than the ranks have.
FoundBackend find_device_backend(const DeviceBackend& wanted, c10::DeviceType device);

/// The file libmuster_NAME.so in these folders, but for the dynamic linker's. Empty if there is none. Opens nothing.
std::string place_of_object(const std::string& name);

}  // namespace muster::comm
