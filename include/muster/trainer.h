#pragma once

/// muster::Trainer, the loops of Lightning's Trainer over Muster's runtime, with all that its users derive from and its
/// callbacks. Other headers of Muster say what else a program may include.
#include "muster/trainer/detail/callback.h"
#include "muster/trainer/detail/data_module.h"
#include "muster/trainer/detail/early_stopping.h"
#include "muster/trainer/detail/gradient_accumulation_scheduler.h"
#include "muster/trainer/detail/lambda_callback.h"
#include "muster/trainer/detail/learning_rate_monitor.h"
#include "muster/trainer/detail/load_from_checkpoint.h"
#include "muster/trainer/detail/model_checkpoint.h"
#include "muster/trainer/detail/model_summary.h"
#include "muster/trainer/detail/module.h"
#include "muster/trainer/detail/on_exception_checkpoint.h"
#include "muster/trainer/detail/options.h"
#include "muster/trainer/detail/prediction_writer.h"
#include "muster/trainer/detail/progress_bar.h"
#include "muster/trainer/detail/terminated.h"
#include "muster/trainer/detail/timer.h"
#include "muster/trainer/detail/trainer.h"
