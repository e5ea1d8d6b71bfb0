#pragma once

#include <cstdint>
#include <vector>

#include "format/stored_content.h"

namespace muster::format {

/// What a checkpoint of Lightning's Trainer holds beside weights.
struct LightningParts {
  std::int64_t batches = 0;           ///< of all epochs
  std::int64_t epochs = 0;            ///< that are over
  std::int64_t global_step = 0;       ///< updates of all optimizers
  bool has_optimizers = false;        ///< training may be resumed from `optimizers`
  PythonValue hyper_parameters = {};  ///< none, or a map
  bool in_epoch = false;              ///< another epoch has begun
  std::vector<PythonValue> optimizers = {};
};

/// Whether a Trainer wrote this checkpoint folder.
bool is_trainers(const StoredContent& stored);
/// Those of a checkpoint folder; zeros and nothing of anything else. Optimizers' states are left out where there are
/// schedulers too, whose states Python's have not.
LightningParts lightning_parts(StoredContent& stored);
/// All that such a file holds. docs/formats/lightning.md describes it.
PythonValue lightning_value(PythonValue weights, LightningParts parts);

}  // namespace muster::format
