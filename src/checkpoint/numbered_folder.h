#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

#include "muster/format/atomic_folder.h"

namespace muster::checkpoint {

/// What has the name of a numbered checkpoint in a folder, by number, whatever it is.
std::map<std::int64_t, std::filesystem::path> numbered_in(const std::filesystem::path& folder);

/// A folder of numbered checkpoints, to which one writer at a time adds.
class NumberedFolder {
 public:
  /// Throws: CheckpointError MU202, MU211.
  explicit NumberedFolder(const std::filesystem::path& folder);

  /// Where the next one goes: after the highest number.
  std::filesystem::path next() const;
  /// Removes the lowest checkpoints of ours until `count` are left; 0 keeps all. What has such a name and is a link, a file, a folder
  /// without a manifest of ours or with files of others is neither removed nor counted.
  void keep_highest(int count) const;

 private:
  std::filesystem::path folder_;
  std::unique_ptr<format::FolderLock> lock_;
};

}  // namespace muster::checkpoint
