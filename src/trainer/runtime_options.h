#pragma once

#include "muster/runtime/options.h"
#include "muster/trainer/detail/options.h"

namespace muster::trainer {

/// What a Trainer's runtime gets of its options.
RuntimeOptions runtime_options(const TrainerOptions& options);

}  // namespace muster::trainer
