#pragma once

#include "muster/parallel/options.h"
#include "muster/strategy/detail/options.h"

namespace muster {

using ShardStage = parallel::ShardStage;

}  // namespace muster
