#pragma once

#include <filesystem>

#include "muster/runtime.h"

namespace muster::trainer {

/// Name of the entry in which a checkpoint stores the position of training.
inline constexpr const char* kTrainerEntry = "trainer";

/// Whether the checkpoint was written inside a batch, so that training cannot be resumed from it bit-exactly.
bool is_interrupted_checkpoint(const Runtime& runtime, const std::filesystem::path& folder);
/// Whether the checkpoint was saved with weights_only.
bool holds_weights_only(const std::filesystem::path& folder);
/// The checkpoint that a signal caused last; empty if the folder has none.
std::filesystem::path newest_hpc_checkpoint(const std::filesystem::path& folder);

}  // namespace muster::trainer
