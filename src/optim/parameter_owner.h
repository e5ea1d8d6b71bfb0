#pragma once  // for other rooms

#include "muster/optim/flat_parameters.h"

namespace muster::optim {

/// What the watcher of a sharded parameter's storage is, too: it leads from the parameter to where its values are.
class ParameterOwner {
 public:
  virtual ~ParameterOwner() = default;
  virtual FlatParameters& flat_parameters() noexcept = 0;
};

}  // namespace muster::optim
