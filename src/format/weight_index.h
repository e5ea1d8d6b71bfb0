#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Weights that are sharded over several files, with a JSON index that maps each tensor to its file.
/// Names and rules are those of the files on model hubs.
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

}  // namespace muster::format
