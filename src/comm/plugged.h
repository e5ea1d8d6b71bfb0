#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/collectives.h"

namespace muster::comm {

/// Makes the backend of a subgroup from its name, this rank's rank in it and its size.
using SplitBackend = std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& name, int rank, int size)>;

/// Runs operations through a c10d::Backend that takes tensors in host memory, LibTorch's or a custom one.
std::unique_ptr<Collectives> make_plugged(c10::intrusive_ptr<c10d::Backend> backend, SplitBackend split);

}  // namespace muster::comm
