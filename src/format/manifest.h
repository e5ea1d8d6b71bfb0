#pragma once  // for other rooms

#include "format/json.h"
#include "format/safetensors.h"

/// The text files of a checkpoint folder: one manifest, and one index per rank beside that rank's safetensors file.
/// docs/formats/checkpoint.md describes every byte. All functions are pure.
namespace muster::format {

inline constexpr std::string_view kManifestName = "manifest.json";
/// Newest version that is read, and the version that is written.
inline constexpr std::int64_t kCheckpointVersion = 1;

/// Name of a rank's index: "rank-00003.json".
std::string rank_index_name(int rank);
/// Name of a rank's tensors: "rank-00003.safetensors".
std::string rank_file_name(int rank);
/// Whether a checkpoint folder may have a file of that name.
bool is_checkpoint_file_name(std::string_view name);

/// Size and checksum of a whole file.
struct FileMark {
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< XXH3-64
};

/// The manifest makes a folder a complete checkpoint: it is written last, and covers every other file by checksums.
struct Manifest {
  std::string id;                 ///< id of the save: equal in all its files, different in each save
  std::vector<FileMark> indexes;  ///< size and checksum of each rank's index, in rank order
};

/// One rank's shard of a tensor, in files: a contiguous range of its elements.
struct ShardEntry {
  std::string name;                 ///< name of the full tensor
  std::vector<std::int64_t> shape;  ///< shape of the full tensor
  std::int64_t begin = 0;           ///< first element of the range, in row-major order
  std::string tensor = {};          ///< name of its 1-D values in the rank's safetensors file; empty if it has none
  // Not in the index, but in the safetensors file:
  std::string dtype = {};
  std::int64_t count = 0;  ///< number of elements in the range
  int rank = 0;
  std::uint64_t offset = 0, bytes = 0;  ///< position of its values in the rank's safetensors file
};

/// The shard, completed by what the rank's safetensors file says of its values, which are `count` elements.
ShardEntry located(ShardEntry shard, const TensorEntry& values, std::int64_t count, int rank);

/// The contents of a rank's index: everything except the tensors.
struct RankIndex {
  std::string id;
  int rank = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t block_bytes =
      0;  ///< block size of checksums in the safetensors file, in bytes; the last block may be shorter
  std::vector<std::uint64_t> checksums;  ///< XXH3-64 of each block
  std::vector<ShardEntry> shards;
  Json own;     ///< state of this rank
  Json shared;  ///< state that is equal on all ranks; null except on rank 0
};

/// The text of a manifest. It ends with a checksum of everything before it.
std::string to_text(const Manifest& manifest);
std::string to_text(const RankIndex& index);

/// Reads a manifest that may be hostile.
/// Throws: CheckpointError MU210 with the reason, MU216 for a version that this program does not know yet.
Manifest parse_manifest(std::string_view text, std::string_view file);
/// As parse_manifest(), for an index: ranks, block sizes and numbers of checksums must be consistent, too.
/// Throws: CheckpointError MU213, MU216.
RankIndex parse_rank_index(std::string_view text, std::string_view file);

/// Checks that the shards of each name cover their tensor exactly once, and returns them sorted by name and beginning.
/// `folder` is for the message.
/// Throws: CheckpointError MU214 with tensor and ranks: different shapes or dtypes, a gap, an overlap.
std::vector<ShardEntry> check_shards(std::vector<ShardEntry> shards, std::string_view folder);

}  // namespace muster::format
