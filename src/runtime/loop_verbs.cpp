#include "muster/runtime/detail/loop_verbs.h"

#include <utility>

#include "muster/runtime/detail/presets.h"
#include "muster/runtime/detail/rng_states.h"

namespace muster::runtime {

LoopVerbs::LoopVerbs(const AcceleratorOptions& options) : Runtime(accelerate(options)) {}

void LoopVerbs::synchronize(const SyncedGenerators& kinds, std::vector<at::Generator> generators) const {
  runtime::synchronize_rng_states(group(), device(), kinds, std::move(generators));
}

}  // namespace muster::runtime
