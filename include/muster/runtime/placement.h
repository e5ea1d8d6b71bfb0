#pragma once

#include <vector>

#include "muster/optim/options.h"

namespace muster {

/// How one call of prepare(), setup() or setup_dataloaders() prepares its objects.
struct PrepareOptions {
  /// Off: modules, and batches of loaders, stay where they are. One value for all objects, or one for each: {true,
  /// false}. Values for optimizers and schedulers are ignored.
  PerGroup<bool> move_to_device = true;
};

namespace runtime {

class RuntimeState;

/// Makes the options apply to all objects that are prepared while it lives.
class PlacementScope {
 public:
  /// `placed`: which objects of the call are modules or loaders.
  /// Throws: ConfigError (MU566) unless there is one value, or one for each object.
  PlacementScope(RuntimeState& state, const PrepareOptions& options, const std::vector<bool>& placed);
  ~PlacementScope();
  PlacementScope(const PlacementScope&) = delete;
  PlacementScope& operator=(const PlacementScope&) = delete;

 private:
  RuntimeState& state_;
};

}  // namespace runtime
}  // namespace muster
