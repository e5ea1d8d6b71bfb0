#pragma once

#include "config_writer.h"
#include "questions.h"

namespace muster::cli {

/// Asks how to train on a machine with this many accelerators, and returns the keys of the file: Accelerate's names
/// where they exist, otherwise Muster's. Values at their default are left out, except the numbers of machines and
/// ranks.
ConfigKeys asked_keys(const Questions& questions, int accelerators);

}  // namespace muster::cli
