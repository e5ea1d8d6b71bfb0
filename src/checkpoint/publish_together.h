#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "muster/checkpoint/options.h"
#include "muster/dist/communicator.h"
#include "muster/format/manifest.h"

namespace muster::checkpoint {

/// What publish_together asks of a rank: to write its files into `part`, marked by `id`, and to return the mark of its index.
using WriteRank = std::function<format::FileMark(const std::filesystem::path& part, const std::string& id)>;

/// Rank 0 opens a folder aside; each rank writes its files; rank 0 looks at all reports, writes the manifest and publishes.
/// Returns where the checkpoint is. `parts` are this rank's slices, which write_rank may fill in.
/// Throws: as write_checkpoint, on all ranks alike.
/// Collective: every rank of the group.
std::filesystem::path publish_together(const std::filesystem::path& folder, const dist::Communicator& group, const WriteCheckpointOptions& options,
                                       const WriteRank& write_rank, const std::vector<format::SlicePart>& parts);

}  // namespace muster::checkpoint
