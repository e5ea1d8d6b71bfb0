#pragma once

#include <memory>
#include <string>
#include <vector>

#include "prepared_optimizer.h"
#include "runtime/prepared_model.h"

namespace muster::runtime {

/// A line of plan(): how much of this rank's state an asynchronous save would now stage in pinned memory.
/// Why: docs/decisions/0145-checkpoints-through-pinned-memory.md.
std::string describe_save_staging(const std::vector<std::shared_ptr<PreparedModel>>& models,
                                  const PreparedOptimizers& optimizers, int rank);

}  // namespace muster::runtime
