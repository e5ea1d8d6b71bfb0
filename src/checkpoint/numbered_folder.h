#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

#include "muster/format/detail/atomic_folder.h"

namespace muster::checkpoint {

/// All entries of a folder with the name of a numbered checkpoint, by number, whatever they are.
std::map<std::int64_t, std::filesystem::path> numbered_in(const std::filesystem::path& folder);

/// A folder of numbered checkpoints, with one writer at a time.
class NumberedFolder {
 public:
  /// Throws: CheckpointError MU202, MU211.
  explicit NumberedFolder(const std::filesystem::path& folder);

  /// The path of the next checkpoint: after the highest number.
  std::filesystem::path next() const;
  /// Removes the lowest checkpoints written by Muster until `count` are left; 0 keeps all. An entry of such a name that
  /// is a link, a file, or a folder without a Muster manifest or with foreign files is neither removed nor counted.
  void keep_highest(int count) const;

 private:
  std::filesystem::path folder_;
  std::unique_ptr<format::FolderLock> lock_;
};

}  // namespace muster::checkpoint
