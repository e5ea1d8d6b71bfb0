#pragma once

#include "config_writer.h"
#include "questions.h"

namespace muster::cli {

/// Asks how to train, on a machine with so many accelerators, and returns the keys of the file: Accelerate's names
/// where it has one, and ours. What is at its default is left out, apart from the number of machines and ranks.
ConfigKeys asked_keys(const Questions& questions, int accelerators);

}  // namespace muster::cli
