#pragma once

#include <vector>

#include "muster/optim/per_group.h"

namespace muster {

/// How the objects of one call of prepare(), setup() or setup_dataloaders() are prepared.
struct PrepareOptions {
  /// Off: modules, and batches of loaders, stay where they are. One answer for all objects, or one for each: {true,
  /// false}. What is given for optimizers and schedulers does not count.
  PerGroup<bool> move_to_device = true;
};

namespace runtime {

class RuntimeState;

/// What is prepared while it lives is moved as the options say.
class PlacementScope {
 public:
  /// `placed`: which objects of the call are modules or loaders.
  /// Throws: ConfigError (MU566) unless there is one answer, or one for each object.
  PlacementScope(RuntimeState& state, const PrepareOptions& options, const std::vector<bool>& placed);
  ~PlacementScope();
  PlacementScope(const PlacementScope&) = delete;
  PlacementScope& operator=(const PlacementScope&) = delete;

 private:
  RuntimeState& state_;
};

}  // namespace runtime
}  // namespace muster
