#pragma once

#include "muster/trainer.h"
#include "muster/trainer/boring_model.h"

namespace muster::testing {

using muster::BoringModel;

}  // namespace muster::testing
