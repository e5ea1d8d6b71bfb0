#pragma once

#include "muster/sim/sim.h"
#include "sim/order.h"

namespace muster::sim {

/// The race with the names of streams and places.
Race described(const FoundRace& race);

}  // namespace muster::sim
