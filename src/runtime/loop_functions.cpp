#include "muster/runtime/detail/loop_functions.h"

#include <utility>

#include "muster/runtime/detail/presets.h"
#include "muster/runtime/detail/rng_states.h"

namespace muster::runtime {

LoopFunctions::LoopFunctions(const AcceleratorOptions& options) : Runtime(accelerate(options)) {}

void LoopFunctions::synchronize(const SyncedGenerators& kinds, std::vector<at::Generator> generators) const {
  runtime::synchronize_rng_states(group(), device(), kinds, std::move(generators));
}

}  // namespace muster::runtime
