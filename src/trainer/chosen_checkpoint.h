#pragma once

#include <filesystem>

#include "muster/runtime.h"

namespace muster::trainer {

/// The entry of a checkpoint that says where training stood.
inline constexpr const char* kTrainerEntry = "trainer";

/// Whether it was written inside of a batch, so that training cannot be resumed from it to the bit.
bool is_interrupted_checkpoint(const Runtime& runtime, const std::filesystem::path& folder);
/// Whether a save with weights_only wrote it.
bool holds_weights_only(const std::filesystem::path& folder);
/// The one that a signal caused last; empty if there is none in the folder.
std::filesystem::path newest_hpc_checkpoint(const std::filesystem::path& folder);

}  // namespace muster::trainer
