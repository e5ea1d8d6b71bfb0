#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/python_content.h"
#include "muster/tree/state.h"

namespace muster::trainer {

/// What is taken of a checkpoint that Lightning wrote in Python.
struct LightningFile {
  int64_t epochs = 0;  ///< that are over
  int64_t global_step = 0;
  State hyper_parameters = {};                     ///< empty: none
  std::vector<checkpoint::LeftOut> left_out = {};  ///< Hyper-parameters that are not understood.
};

/// Whether it is a file; ours are folders.
bool is_lightning_file(const std::filesystem::path& checkpoint);
/// Reads it; nothing in it is executed, and what is not understood is left out, but for weights.
/// Throws: CheckpointError (MU466) for another file of torch.save; as load_python().
LightningFile read_lightning_file(const std::filesystem::path& checkpoint);

}  // namespace muster::trainer
