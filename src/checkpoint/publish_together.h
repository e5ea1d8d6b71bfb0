#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/save_target.h"
#include "format/manifest.h"
#include "muster/checkpoint/options.h"
#include "muster/comm/communicator.h"

namespace muster::checkpoint {

/// Called by publish_together() on each rank: writes the rank's files, which `create` creates, marked with `id`, and
/// returns the mark of its index.
using WriteRank = std::function<format::FileMark(const CreateFile& create, const std::string& id)>;

/// Rank 0 opens the target of the options; each rank writes its files; rank 0 checks all reports, writes the manifest
/// and publishes the checkpoint. Returns the path of the checkpoint. `shards` are this rank's shards, which write_rank
/// may fill in.
/// Throws: as write_checkpoint, on all ranks alike.
/// Collective: every rank of the group.
std::filesystem::path publish_together(const std::filesystem::path& folder, const comm::Communicator& group,
                                       const WriteCheckpointOptions& options, const WriteRank& write_rank,
                                       const std::vector<format::ShardEntry>& shards);

}  // namespace muster::checkpoint
