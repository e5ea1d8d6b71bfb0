#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// Wraps the group as a c10d backend, for code that expects one. It runs the checked operations of the group, numbered
/// together with the group's own.
/// It takes one tensor per call, and the reduce operations SUM, AVG, MIN, MAX and PRODUCT.
/// The future of a Work completes when its operation has completed.
/// Throws, from its collectives: what the communicator throws (ConfigError and CommError); ConfigError (MU055) for
/// other reductions.
c10::intrusive_ptr<c10d::Backend> make_backend(const Communicator& communicator);

}  // namespace muster::comm
