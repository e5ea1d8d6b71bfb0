#pragma once

namespace muster {
class Runtime;
}

namespace muster::runtime {

class RuntimeState;

/// The implementation of the runtime of an Accelerator, a Fabric or a Trainer.
RuntimeState& state_of(const Runtime& runtime);

}  // namespace muster::runtime
