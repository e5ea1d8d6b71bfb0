#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "format/atomic_folder.h"
#include "muster/checkpoint/options.h"

namespace muster::checkpoint {

/// All entries of a folder whose names are those of numbered checkpoints, by number, of any file type.
std::map<std::int64_t, std::filesystem::path> numbered_in(const std::filesystem::path& folder);
/// As numbered_in(), for a storage. Throws: CheckpointError `id` (MU313 or MU314) if the storage fails.
std::map<std::int64_t, std::filesystem::path> numbered_in_storage(std::string_view id, const std::string& folder,
                                                                  CheckpointStorage& storage);

/// The path with the number after the highest of these. Throws: CheckpointError MU202 if no number is left.
std::filesystem::path next_numbered(const std::filesystem::path& folder,
                                    const std::map<std::int64_t, std::filesystem::path>& numbered);

/// Why a checkpoint of a storage is neither removed nor counted; empty if it has a manifest of Muster.
/// Throws: CheckpointError MU314.
std::string reason_to_keep(const std::filesystem::path& path, const std::shared_ptr<CheckpointStorage>& storage);

/// Removes all but the `count` highest of these; 0 keeps all. A checkpoint for which `reason_to_keep` gives a reason is
/// neither removed nor counted, and the log says why. Throws: exceptions of the two functions.
void keep_highest(const std::map<std::int64_t, std::filesystem::path>& numbered, int count,
                  const std::function<std::string(const std::filesystem::path& path)>& reason_to_keep,
                  const std::function<void(const std::filesystem::path& path)>& remove);

/// A folder of numbered checkpoints, with one writer at a time.
class NumberedFolder {
 public:
  /// Throws: CheckpointError MU202, MU211.
  explicit NumberedFolder(const std::filesystem::path& folder);

  /// The path of the next checkpoint: after the highest number.
  std::filesystem::path next() const;
  /// Removes the lowest checkpoints written by Muster until `count` are left; 0 keeps all. An entry with such a name
  /// that is a link, a file, or a folder without a Muster manifest or with foreign files is neither removed nor
  /// counted.
  void keep_highest(int count) const;

 private:
  std::filesystem::path folder_;
  std::unique_ptr<format::FolderLock> lock_;
};

}  // namespace muster::checkpoint
