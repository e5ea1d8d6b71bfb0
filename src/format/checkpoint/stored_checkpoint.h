#pragma once

#include <filesystem>
#include <memory>

#include "format/stored_content.h"

namespace muster::format {

/// Opens a checkpoint folder: see open_content.
StoredContent open_checkpoint(const std::filesystem::path& folder);

/// Compares every byte of the folder's tensors with its checksums.
/// Requires: open_checkpoint() has accepted the folder. Throws: CheckpointError MU213, MU200.
void check_checkpoint_values(const std::filesystem::path& folder);

/// Adds a tensor of a safetensors file, with its own storage.
/// Throws: CheckpointError MU207.
PythonValue add_tensor(StoredContent& stored, const std::shared_ptr<const InputFile>& file, const TensorEntry& entry);

}  // namespace muster::format
