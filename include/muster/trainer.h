#pragma once

/// muster::Trainer (the loops of Lightning's Trainer on Muster's runtime), its callbacks, and the classes that its
/// users derive from.
#include "muster/trainer/callback.h"
#include "muster/trainer/data_module.h"
#include "muster/trainer/early_stopping.h"
#include "muster/trainer/gradient_accumulation_scheduler.h"
#include "muster/trainer/lambda_callback.h"
#include "muster/trainer/learning_rate_monitor.h"
#include "muster/trainer/load_from_checkpoint.h"
#include "muster/trainer/model_checkpoint.h"
#include "muster/trainer/model_summary.h"
#include "muster/trainer/module.h"
#include "muster/trainer/on_exception_checkpoint.h"
#include "muster/trainer/options.h"
#include "muster/trainer/prediction_writer.h"
#include "muster/trainer/progress_bar.h"
#include "muster/trainer/terminated.h"
#include "muster/trainer/timer.h"
#include "muster/trainer/trainer.h"
