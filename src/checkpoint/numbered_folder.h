#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

#include "muster/format/atomic_folder.h"

namespace muster::checkpoint {

/// The numbered checkpoints in a folder, by number, complete or not.
std::map<std::int64_t, std::filesystem::path> numbered_in(const std::filesystem::path& folder);

/// A folder of numbered checkpoints, to which one writer at a time adds.
class NumberedFolder {
 public:
  /// Throws: CheckpointError MU202, MU211.
  explicit NumberedFolder(const std::filesystem::path& folder);

  /// Where the next one goes: after the highest number.
  std::filesystem::path next() const;
  /// Removes the lowest until `count` are left; 0 keeps all.
  void keep_highest(int count) const;

 private:
  std::filesystem::path folder_;
  std::unique_ptr<format::FolderLock> lock_;
};

}  // namespace muster::checkpoint
