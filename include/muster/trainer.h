#pragma once

/// muster::Trainer (the loops of Lightning's Trainer on Muster's runtime), its callbacks, and the classes that its
/// users derive from.
#include "muster/trainer/callback.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/data_module.h"
#include "muster/trainer/load_from_checkpoint.h"
#include "muster/trainer/module.h"
#include "muster/trainer/options.h"
#include "muster/trainer/trainer.h"
