#include "muster/runtime/detail/loop_verbs.h"

#include "muster/runtime/detail/presets.h"

namespace muster::runtime {

LoopVerbs::LoopVerbs(const AcceleratorOptions& options) : Runtime(accelerate(options)) {}

}  // namespace muster::runtime
