#pragma once

#include <memory>

#include "atomic_load.h"
#include "muster/data/detail/loader_state.h"
#include "muster/tree/state.h"

namespace muster::runtime {

State position_state(const data::LoaderState& loader);
data::LoaderPosition position_from(const State& state);
/// Throws: UsageError (MU114) for a position below 0.
void load_position(const std::shared_ptr<data::LoaderState>& loader, const data::LoaderPosition& position,
                   AtomicLoad& load);

}  // namespace muster::runtime
