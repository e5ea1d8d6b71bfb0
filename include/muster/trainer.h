#pragma once

/// muster::Trainer, the loops of Lightning's Trainer over Muster's runtime, with all that its users derive from and its
/// callbacks. Other headers of Muster say what else a program may include.
#include "muster/trainer/detail/callback.h"
#include "muster/trainer/detail/data_module.h"
#include "muster/trainer/detail/early_stopping.h"
#include "muster/trainer/detail/load_from_checkpoint.h"
#include "muster/trainer/detail/model_checkpoint.h"
#include "muster/trainer/detail/module.h"
#include "muster/trainer/detail/options.h"
#include "muster/trainer/detail/terminated.h"
#include "muster/trainer/detail/trainer.h"
