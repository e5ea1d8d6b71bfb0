#pragma once

/// muster::trainer_main(), a program of one line: muster::Trainer with the commands, options and files of LightningCLI.
#include "muster/trainer.h"
#include "muster/trainer/main.h"
