#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "muster/format/atomic_file.h"
#include "muster/format/weight_index.h"

/// A folder's set of weight files: one file, or several with an index. No tensor is known here.
namespace muster::format {

/// The files that make up one set of weights.
struct WeightSet {
  std::vector<std::filesystem::path> files;
  std::optional<WeightIndex> index;  ///< Of a set of several files.
  std::filesystem::path index_path;
};

/// Finds the files of `path`: a weight file, an index (its name ends with .json), or a folder that has model.safetensors
/// or else an index.
/// Throws: CheckpointError MU200 if there is none, MU205 if the index cannot be trusted.
WeightSet find_weight_set(const std::filesystem::path& path);

/// Puts a complete set into `folder` in place of a former one, and then removes what only the former one used.
/// A process that dies at any moment leaves a folder that loads as the old set or as the new one: an index never
/// names a file of another set. Where names of both sets meet, the old files keep their bytes under a second name
/// for that moment, so the file system must allow hard links; where it does not, that moment leaves no index.
/// Requires: `files` are written, named by `shard_name`; `index` is given if there are several.
/// Throws: CheckpointError MU202.
void publish_weight_set(const std::filesystem::path& folder, std::span<const std::unique_ptr<AtomicFile>> files,
                        const std::optional<WeightIndex>& index, Durability durability);

}  // namespace muster::format
