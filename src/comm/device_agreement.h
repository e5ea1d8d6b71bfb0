#pragma once  // for other rooms

#include <string>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// The name of the group's backend for tensors of a device; empty if there is none, and tensors are staged.
std::string device_backend_of(const Communicator& group);

/// Compares which operations these ranks have given to backends of devices so far, in all groups that they share. Such
/// operations start before ranks have agreed, so their results may be wrong, or never come, until this returns. Does
/// not wait for a device. Does nothing if the group has no backend of a device.
/// Throws: CommError (MU050) that names both sides, on every rank; the group has failed then. Collective.
/// Why: docs/decisions/0138-device-operations-are-compared-later.md.
void require_same_device_operations(const Communicator& group);

}  // namespace muster::comm
