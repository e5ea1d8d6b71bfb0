#pragma once

namespace muster {
class Runtime;
}

namespace muster::runtime {

class RuntimeState;

/// What the runtime of an Accelerator, a Fabric or a Trainer is made of.
RuntimeState& state_of(const Runtime& runtime);

}  // namespace muster::runtime
