#pragma once  // for other rooms

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/atomic_file.h"
#include "format/weight_index.h"

/// A folder's set of weight files: one file, or several with an index. This file does not use tensors.
namespace muster::format {

/// The files that make up one set of weights.
struct WeightSet {
  std::vector<std::filesystem::path> files;
  std::optional<WeightIndex> index;  ///< Set if there are several files.
  std::filesystem::path index_path;
  std::string index_stamp = {};  ///< other for each file that was published under that name
};

/// Finds the files of `path`: a weight file, an index (its name ends with .json), or a folder that has
/// model.safetensors, or else its index, or else pytorch_model.bin, or its index.
/// Throws: CheckpointError MU200 if there is none, MU205 if the index cannot be trusted.
WeightSet find_weight_set(const std::filesystem::path& path);

/// Whether they are files of torch.save, by the first bytes of the first one. Throws: CheckpointError MU200.
bool is_of_python(const WeightSet& set);

/// Requires: `holds` says whether a name is among what the files hold together.
/// Throws: CheckpointError MU205, which names the first tensor of the index that is not.
void require_listed(const WeightSet& set, const std::function<bool(const std::string& name)>& holds);

/// Throws: CheckpointError MU205, which names the tensor, if a set with an index has other tensors than the index
/// lists, or has them in other files. `file_of`: the name of the file of each tensor that its files have.
void require_indexed(const WeightSet& set, const std::map<std::string, std::string>& file_of);

/// Calls `open` with the set of `path`; again, if another process has replaced the set meanwhile.
/// Throws: as find_weight_set() and `open`; CheckpointError MU205 if it is replaced time after time.
void open_weight_set(const std::filesystem::path& path, const std::function<void(const WeightSet&)>& open);

/// Moves a complete set into `folder` in place of an earlier one, and then removes the files that only the earlier one
/// used. A process that dies at any moment leaves a folder that loads as the old set or as the new one: an index never
/// names a file of another set. Where both sets use the same name, the old file briefly keeps its bytes under a second
/// name, so the file system must allow hard links; without them, the folder has no index at that moment.
/// Writers of one folder take turns, so that the set of the last one is there in the end.
/// Requires: `files` are written, named by `shard_name`; `index` is given if there are several.
/// Throws: CheckpointError MU202; MU211 if another writer does not come to its end within a minute.
void publish_weight_set(const std::filesystem::path& folder, std::span<const std::unique_ptr<AtomicFile>> files,
                        const std::optional<WeightIndex>& index, Durability durability);

}  // namespace muster::format
