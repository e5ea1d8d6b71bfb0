#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/collectives.h"

namespace muster::comm {

/// Makes the backend of a part of the group, from its name, this rank's rank and the size.
using SplitBackend = std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& name, int rank, int size)>;

/// The operations through a c10d::Backend that takes tensors in host memory, LibTorch's or one of the program's own.
std::unique_ptr<Collectives> make_plugged(c10::intrusive_ptr<c10d::Backend> backend, SplitBackend split);

}  // namespace muster::comm
