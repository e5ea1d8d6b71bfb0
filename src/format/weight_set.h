#pragma once  // for other rooms

#include <functional>

#include "format/atomic_file.h"
#include "format/safetensors.h"

/// Weights that are sharded over several files, with a JSON index that maps each tensor to its file.
/// Names and rules are those of the files on model hubs.
/// The set of weight files in a folder: one file, or several with an index. This file does not use tensors.
namespace muster::format {

inline constexpr std::string_view kWeightsName = "model.safetensors";
inline constexpr std::string_view kWeightIndexName = "model.safetensors.index.json";
/// Default name of weights in files of torch.save, which model hubs used earlier.
inline constexpr std::string_view kTorchWeightsName = "pytorch_model.bin";
inline constexpr std::string_view kTorchWeightIndexName = "pytorch_model.bin.index.json";

/// Divides tensors of these sizes, in order, into files of at most `limit_bytes`. A tensor above the limit gets its own
/// file, which comes before the one being filled. Returns the tensors' indices, file by file; at least one file, which
/// may be empty.
std::vector<std::vector<std::size_t>> split_into_shards(std::span<const std::uint64_t> tensor_bytes,
                                                        std::uint64_t limit_bytes);

/// The name of a file: "model.safetensors" if it is the only one, otherwise "model-00001-of-00002.safetensors" for
/// index 0 of 2.
std::string shard_name(std::size_t index, std::size_t count);

/// Whether shard_name() returns such a name, or it is the name of a former file set aside while a new save replaces it.
bool is_weight_file_name(std::string_view name);

/// The index of a set of files.
struct WeightIndex {
  std::map<std::string, std::string> file_of;  ///< file name of each tensor, in the index's own folder
  std::uint64_t total_bytes = 0;               ///< size of all tensors in bytes
};

/// The index as text: keys sorted, indented by two, with a final newline.
std::string to_json(const WeightIndex& index);

/// Reads an index that may be hostile. The total size is 0 if the text has none.
/// Throws: CheckpointError MU205 with the reason; a file name with a folder in it is one.
WeightIndex parse_index(std::string_view text, std::string_view file);

/// The files that make up one set of weights.
struct WeightSet {
  std::vector<std::filesystem::path> files;
  std::optional<WeightIndex> index;  ///< index; set if there are several files
  std::filesystem::path index_path;
  std::string index_stamp = {};  ///< stamp of the index file; differs for each file published under its name
};

/// Finds the files of `path`: a weight file, an index (its name ends with .json), or a folder that has
/// model.safetensors, or else its index, or else pytorch_model.bin, or its index.
/// Throws: CheckpointError MU200 if there is none, MU205 if the index cannot be trusted.
WeightSet find_weight_set(const std::filesystem::path& path);

/// Whether these are files of torch.save, judged by the first bytes of the first one. Throws: CheckpointError MU200.
bool is_of_python(const WeightSet& set);

/// Requires: `holds` tells whether any of the files has a tensor of that name.
/// Throws: CheckpointError MU205 with the first tensor of the index that is missing.
void require_listed(const WeightSet& set, const std::function<bool(const std::string& name)>& holds);

/// Throws: CheckpointError MU205 with the tensor if a set with an index has other tensors than the index lists, or has
/// them in other files. `file_of`: the file name of each tensor in the files.
void require_indexed(const WeightSet& set, const std::map<std::string, std::string>& file_of);

/// Calls `open` with the set of `path`, and calls it again if another process has replaced the set meanwhile.
/// Throws: as find_weight_set() and `open`; CheckpointError MU205 if the set is replaced repeatedly.
void open_weight_set(const std::filesystem::path& path, const std::function<void(const WeightSet&)>& open);

/// Moves a complete set into `folder` in place of an earlier one, and then removes the files that only the earlier one
/// used. A process that dies at any moment leaves a folder that loads as the old set or as the new one: an index never
/// names a file of another set. Where both sets use the same name, the old file briefly keeps its bytes under a second
/// name, so the file system must allow hard links; without them, the folder has no index at that moment. Writers of one
/// folder take turns, so that the last writer's set remains.
/// Requires: `files` are written and have names from shard_name(); `index` is given if there are several.
/// Throws: CheckpointError MU202; MU211 if another writer does not finish within a minute.
void publish_weight_set(const std::filesystem::path& folder, std::span<const std::unique_ptr<AtomicFile>> files,
                        const std::optional<WeightIndex>& index, Durability durability);

/// Writes the values of these tensors to a file, in this order.
using WriteValues = std::function<void(AtomicFile& file, std::span<const std::size_t> tensors)>;

/// Writes a safetensors file, which is not published.
/// Throws: CheckpointError MU202, MU203; exceptions of `write_values`.
std::unique_ptr<AtomicFile> write_weight_file(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                                              const Metadata& metadata, Durability durability,
                                              const WriteValues& write_values);

/// Writes a folder of weights in files of at most `limit_bytes`, creates it if needed, and publishes the set. The
/// metadata of every file are `metadata` and, for each of its tensors, the names that are tied to it: `tied` maps them
/// to the tensor's. Returns the paths of the weight files. Throws: as write_weight_file() and publish_weight_set().
std::vector<std::filesystem::path> write_weight_set(const std::filesystem::path& folder,
                                                    std::span<const TensorSpec> tensors, const Metadata& metadata,
                                                    const Metadata& tied, std::uint64_t limit_bytes,
                                                    Durability durability, const WriteValues& write_values);

}  // namespace muster::format
