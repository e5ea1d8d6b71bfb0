#pragma once

#include <filesystem>
#include <memory>

#include "muster/format/stored_content.h"

namespace muster::format {

/// Opens a checkpoint folder: see open_content.
StoredContent open_checkpoint(const std::filesystem::path& folder);

/// Adds a tensor of a safetensors file, with a storage of its own.
/// Throws: CheckpointError MU207.
PythonValue add_tensor(StoredContent& stored, const std::shared_ptr<const InputFile>& file, const TensorEntry& entry);

}  // namespace muster::format
