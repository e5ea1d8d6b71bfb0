#pragma once  // for other rooms

#include "muster/optim/flat_parameters.h"

namespace muster::optim {

/// A second base class of the watcher of a sharded parameter's storage: it leads from the parameter to its values.
class ParameterOwner {
 public:
  virtual ~ParameterOwner() = default;
  virtual FlatParameters& flat_parameters() noexcept = 0;
};

}  // namespace muster::optim
