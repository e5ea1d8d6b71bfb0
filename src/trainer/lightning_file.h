#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/python_content.h"
#include "muster/tree/state.h"

namespace muster::trainer {

/// The parts of a checkpoint of Lightning in Python that are used.
struct LightningFile {
  int64_t epochs = 0;  ///< number of completed epochs
  int64_t global_step = 0;
  State hyper_parameters = {};                     ///< hyper-parameters; empty if there are none
  std::vector<checkpoint::LeftOut> left_out = {};  ///< hyper-parameters that could not be read
};

/// Whether the checkpoint is a file; Muster's checkpoints are folders.
bool is_lightning_file(const std::filesystem::path& checkpoint);
/// Reads the file without executing anything in it. Unreadable parts are left out, except in weights.
/// Throws: CheckpointError (MU466) for another file of torch.save; as load_python().
LightningFile read_lightning_file(const std::filesystem::path& checkpoint);

}  // namespace muster::trainer
