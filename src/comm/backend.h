#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// Wraps the group as a c10d backend, for code that expects one: the same checked operations, numbered with the group's
/// own.
/// It takes one tensor per call, and the options' reduce operations SUM, AVG, MIN, MAX and PRODUCT.
/// Futures of its works complete when the operation has completed.
/// Throws, from its collectives: ConfigError and CommError as the communicator does; ConfigError (MU055) for other
/// reductions.
c10::intrusive_ptr<c10d::Backend> make_backend(const Communicator& communicator);

}  // namespace muster::comm
