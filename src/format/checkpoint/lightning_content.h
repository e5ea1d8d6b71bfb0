#pragma once

#include <cstdint>
#include <vector>

#include "format/stored_content.h"

namespace muster::format {

// Why: docs/decisions/0109-lightnings-files.md.

/// The contents of a checkpoint of Lightning's Trainer, without the weights.
struct LightningParts {
  std::int64_t batches = 0;           ///< number of batches of all epochs
  std::int64_t epochs = 0;            ///< number of completed epochs
  std::int64_t global_step = 0;       ///< number of updates of all optimizers
  bool has_optimizers = false;        ///< true if training can be resumed from `optimizers`
  PythonValue hyper_parameters = {};  ///< None or a map
  bool in_epoch = false;              ///< true if another epoch has begun
  std::vector<PythonValue> optimizers = {};
};

/// Whether a Trainer wrote this checkpoint folder.
bool is_trainers(const StoredContent& stored);
/// The parts of a checkpoint folder; zeros and empty values for anything else. The states of optimizers are left out if
/// there are schedulers too, since the states of those have no counterpart in Python.
LightningParts lightning_parts(StoredContent& stored);
/// The complete contents of such a file, as docs/formats/lightning.md describes them.
PythonValue lightning_value(PythonValue weights, LightningParts parts);

}  // namespace muster::format
