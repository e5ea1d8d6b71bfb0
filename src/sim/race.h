#pragma once

#include "muster/sim/sim.h"
#include "sim/order.h"

namespace muster::sim {

/// With the names of streams and places.
Race described(const FoundRace& race);

}  // namespace muster::sim
