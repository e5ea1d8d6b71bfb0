#pragma once  // for other rooms

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/json.h"

/// The text files of a checkpoint folder: one manifest, and one index per rank beside that rank's safetensors file.
/// docs/formats/checkpoint.md describes every byte. All functions are pure.
namespace muster::format {

inline constexpr std::string_view kManifestName = "manifest.json";
/// The newest version that is read, and the one that is written.
inline constexpr std::int64_t kCheckpointVersion = 1;

/// "rank-00003.json".
std::string rank_index_name(int rank);
/// "rank-00003.safetensors".
std::string rank_file_name(int rank);
/// Whether a checkpoint folder may have a file of that name.
bool is_checkpoint_file_name(std::string_view name);

/// Size and checksum of a file as a whole.
struct FileMark {
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< XXH3-64
};

/// Makes a folder a complete checkpoint: it is written last, and covers every other file by checksums.
struct Manifest {
  std::string id;                 ///< The same in all files of one save, different in each save.
  std::vector<FileMark> indexes;  ///< Size and checksum of each rank's index, in rank order.
};

/// A contiguous range of elements that a rank holds of a tensor that is sharded over the ranks.
struct ShardEntry {
  std::string name;                 ///< Of the full tensor.
  std::vector<std::int64_t> shape;  ///< Of the full tensor.
  std::int64_t begin = 0;           ///< First element of the range, in row-major order.
  std::string tensor = {};  ///< Name of its values in the rank's safetensors file: a 1-D tensor; empty if it has none.
  // These are not in the index: the safetensors file has them.
  std::string dtype = {};
  std::int64_t count = 0;  ///< Elements of the range.
  int rank = 0;
};

/// What a rank wrote, beside the tensors themselves.
struct RankIndex {
  std::string id;
  int rank = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t block_bytes =
      0;  ///< The safetensors file is checksummed in blocks of this size; the last may be shorter.
  std::vector<std::uint64_t> checksums;  ///< XXH3-64 of each block.
  std::vector<ShardEntry> shards;
  Json own;     ///< This rank's state.
  Json shared;  ///< The state that is the same on all ranks; null except on rank 0.
};

/// The text ends with a checksum of everything before it.
std::string to_text(const Manifest& manifest);
std::string to_text(const RankIndex& index);

/// Reads a manifest that may be hostile.
/// Throws: CheckpointError MU210 with the reason, MU216 for a version that is newer than this program.
Manifest parse_manifest(std::string_view text, std::string_view file);
/// The same for an index: its text, and its ranks, block sizes and numbers of checksums must be consistent.
/// Throws: CheckpointError MU213, MU216.
RankIndex parse_rank_index(std::string_view text, std::string_view file);

/// Whether the shards of each name cover their tensor exactly once. `folder` is for the message.
/// Throws: CheckpointError MU214 that names tensor and ranks: shape or dtype differ, a gap, an overlap.
void check_shards(std::vector<ShardEntry> shards, std::string_view folder);

}  // namespace muster::format
