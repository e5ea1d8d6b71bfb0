#pragma once

/// muster::trainer_main(), which makes a program in one line: muster::Trainer with the commands, options and files of
/// LightningCLI.
#include "muster/trainer.h"
#include "muster/trainer/main.h"
