#pragma once  // for other rooms

#include <chrono>
#include <filesystem>

#include "base/descriptor.h"
#include "muster/format/options.h"

namespace muster::format {

/// The exclusive right to write under a name: an advisory lock on the file `.NAME.lock` beside it, which the kernel
/// releases however its owner ends. If the file system has no locks, a warning is logged instead.
/// Thread safety: one thread at a time.
class FolderLock {
 public:
  /// Waits up to `timeout` for another writer that holds the lock. Throws: CheckpointError MU211, with the owner, after
  /// that; MU202 if nothing can be written there.
  explicit FolderLock(const std::filesystem::path& path, std::chrono::milliseconds timeout = {});
  ~FolderLock();

 private:
  std::filesystem::path lock_path_;
  Descriptor descriptor_;
};

/// A folder that appears under its name complete or not at all, and replaces an earlier one.
/// It is first written to `.NAME.XXXXXXXX.partial` in the same parent folder; all code that knows part() may write
/// there. If the object is destroyed without publish(), the partial folder is removed and an existing folder of that
/// name is untouched. The next AtomicFolder of that name removes leftovers of killed writers. A name has one writer at
/// a time; others are refused. The new folder has the mode of the one it replaces.
/// Thread safety: one thread at a time.
class AtomicFolder {
 public:
  /// `is_own` returns which file names such a folder may contain: a folder with any other file is not replaced. Parent
  /// folders are created if needed.
  /// Throws: CheckpointError MU202 if nothing can be written there; MU211 if another writer is active; MU212 if the
  /// path exists and is not such a folder.
  AtomicFolder(const std::filesystem::path& path, Durability durability, bool (*is_own)(std::string_view));
  ~AtomicFolder();

  const std::filesystem::path& path() const { return path_; }
  /// The partial folder to write into.
  const std::filesystem::path& part() const { return part_; }

  /// Moves the folder to its name. Its files must already be on the medium if durability requires it. An earlier folder
  /// is exchanged in one step (renameat2), so that the name always refers to a complete one. If the file system cannot
  /// do this, the earlier folder is briefly named `.NAME.XXXXXXXX.former`, a name that find_folder() also checks.
  /// Throws: CheckpointError MU202.
  void publish();

 private:
  std::filesystem::path path_;
  FolderLock lock_;
  std::filesystem::path part_;
  Durability durability_;
  bool is_published_ = false;
};

/// Removes leftovers of killed writers of that name, and renames an earlier folder that was set aside back to that
/// name.
/// Requires: the caller has the lock of that name. Never throws.
void clear_left(const std::filesystem::path& path) noexcept;

/// Removes a folder so that its name never refers to a half-removed one. Never throws; failures are logged.
void remove_folder(const std::filesystem::path& path) noexcept;

/// The folder of that name: `path` itself or, if it does not exist, the earlier folder that a killed writer had set
/// aside.
std::filesystem::path find_folder(const std::filesystem::path& path);

}  // namespace muster::format
