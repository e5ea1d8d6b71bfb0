#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "muster/format/options.h"

namespace muster::format {

/// The right to write under a name, for one writer at a time: an advisory lock on the file `.NAME.lock` beside it, which the
/// kernel takes back when its owner ends, however it ends. Where a file system has no locks, a warning is logged instead.
/// Thread safety: one thread at a time.
class FolderLock {
 public:
  /// Throws: CheckpointError MU211, naming the owner, if somebody has it; MU202 if nothing can be written there.
  explicit FolderLock(const std::filesystem::path& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path lock_path_;
  int descriptor_ = -1;
};

/// A folder that appears under its name complete or not at all, in place of a former one.
/// It is written aside, in the same folder, as `.NAME.XXXXXXXX.partial`; whoever knows part() may write there. If the object
/// ends without publish(), the part is removed and what stood under the name before is untouched. What killed writers left is
/// removed by the next AtomicFolder of that name. One writer at a time has a name; others are refused. It has the mode of the former one.
/// Thread safety: one thread at a time.
class AtomicFolder {
 public:
  /// `is_own` says which file names such a folder may have: a folder with any other is not replaced.
  /// Folders above are made if need be.
  /// Throws: CheckpointError MU202 if nothing can be written there; MU211 if another writer is at it; MU212 if what stands
  /// there is no such folder.
  AtomicFolder(const std::filesystem::path& path, Durability durability, bool (*is_own)(std::string_view));
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The folder to write into.
  const std::filesystem::path& part() const { return part_; }

  /// Puts the folder under its name. The files in it must be on the medium already as far as that is asked for.
  /// A former folder is exchanged with it in one step (renameat2), so that its name always stands for a complete one; where
  /// the file system cannot, the former is `.NAME.XXXXXXXX.former` for a moment, where find_folder looks, too.
  /// Throws: CheckpointError MU202.
  void publish();

 private:
  std::filesystem::path path_;
  FolderLock lock_;
  std::filesystem::path part_;
  Durability durability_;
  bool is_published_ = false;
};

/// Removes what killed writers of that name left beside it, and gives the name back to a former folder that was set aside.
/// Requires: the caller has the lock of that name. Never throws.
void clear_left(const std::filesystem::path& path) noexcept;

/// Removes a folder so that its name never stands for half of it. Never throws; what cannot be removed is logged.
void remove_folder(const std::filesystem::path& path) noexcept;

/// The folder of that name: `path` itself, or, if there is none, the former one that a killed writer had set aside.
std::filesystem::path find_folder(const std::filesystem::path& path);

}  // namespace muster::format
