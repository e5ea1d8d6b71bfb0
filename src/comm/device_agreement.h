#pragma once  // for other rooms

#include <string>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// The name of the group's backend for tensors of a device; empty: there is none, and they are staged.
std::string device_backend_of(const Communicator& group);

/// Compares which operations these ranks have given to backends of devices so far, in all groups that they share. Such
/// operations are not held back until ranks agree, so values made by them may be wrong, or never come, until this
/// returns. Does not wait for a device. Does nothing where the group has no backend of a device.
/// Throws: CommError (MU050) that names both sides, on every rank; the group has failed then. Collective.
void require_same_device_operations(const Communicator& group);

}  // namespace muster::comm
