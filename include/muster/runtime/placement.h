#pragma once

#include <cstddef>
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
/// Whether each of so many objects is moved. Throws: ConfigError (MU566) unless there is one value, or one for each.
std::vector<bool> moves_of(const PrepareOptions& options, std::size_t objects);
}  // namespace runtime
}  // namespace muster
